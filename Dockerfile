# The manager and, once it exists, the mirror agent, both static, at the root of an image without a shell.
FROM golang:1.26.8 AS builder
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=unknown
# No build date and no path of the builder: the same sources give the same binaries.
RUN mkdir /out && for command in manager mirror-agent; do \
      if [ -d "cmd/$command" ]; then \
        CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=${VERSION}" -o "/out/$command" "./cmd/$command" || exit 1; \
      fi; done

FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=builder /out/ /
USER 65532:65532
ENTRYPOINT ["/manager"]
