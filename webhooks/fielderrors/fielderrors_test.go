// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package fielderrors

import (
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

type inner struct {
	Image string `json:"image,omitempty" validate:"omitempty,image_reference"`
}

type settings struct {
	Inner     inner  `json:"inner"`
	Address   string `json:"listen-address" validate:"listen_address"`
	Namespace string `json:"namespace" validate:"omitempty,namespace_name"`
	Format    string `json:"format" validate:"oneof=json console"`
	Name      string `json:"name" validate:"required"`
	Count     int    `json:"count" validate:"min=1,max=3"`
	Folder    string `json:"folder" validate:"omitempty,dir"`
	File      string `json:"file" validate:"omitempty,file"`
	Email     string `json:"email" validate:"omitempty,email"`
}

func good() settings {
	return settings{Address: ":9443", Format: "json", Name: "x", Count: 1}
}

func TestStructNamesEachFaultInWords(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*settings)
		want   []string
	}{
		"none":          {func(*settings) {}, nil},
		"image":         {func(s *settings) { s.Inner.Image = "A B" }, []string{`spec.inner.image: Invalid value: "A B": must be an image reference such as "nginx:1.29" or "registry.example.com/team/app@sha256:…": invalid reference format: repository name (library/A B) must be lowercase`}},
		"image's case":  {func(s *settings) { s.Inner.Image = "Nginx" }, []string{`spec.inner.image: Invalid value: "Nginx": must be an image reference such as "nginx:1.29" or "registry.example.com/team/app@sha256:…": invalid reference format: repository name (library/Nginx) must be lowercase`}},
		"no port":       {func(s *settings) { s.Address = "localhost" }, []string{`spec.listen-address: Invalid value: "localhost": must be host:port, such as "127.0.0.1:9443" or ":9443"`}},
		"host name":     {func(s *settings) { s.Address = "example.com:1" }, []string{`spec.listen-address: Invalid value: "example.com:1": must have an IP address, localhost or nothing as its host`}},
		"port too high": {func(s *settings) { s.Address = ":65536" }, []string{`spec.listen-address: Invalid value: ":65536": must have a port between 1 and 65535`}},
		"off":           {func(s *settings) { s.Address = "0" }, nil},
		"IPv6":          {func(s *settings) { s.Address = "[::1]:1" }, nil},
		"namespace":     {func(s *settings) { s.Namespace = "A" }, []string{`spec.namespace: Invalid value: "A": a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')`}},
		"choice":        {func(s *settings) { s.Format = "xml" }, []string{`spec.format: Unsupported value: "xml": supported values: "json", "console"`}},
		"required":      {func(s *settings) { s.Name = "" }, []string{`spec.name: Required value: must be set`}},
		"too small":     {func(s *settings) { s.Count = 0 }, []string{`spec.count: Invalid value: 0: must be at least 1`}},
		"too large":     {func(s *settings) { s.Count = 4 }, []string{`spec.count: Invalid value: 4: must be at most 3`}},
		"folder":        {func(s *settings) { s.Folder = "/does/not/exist" }, []string{`spec.folder: Invalid value: "/does/not/exist": must be an existing folder`}},
		"file":          {func(s *settings) { s.File = "/does/not/exist" }, []string{`spec.file: Invalid value: "/does/not/exist": must be an existing file`}},
		"another tag":   {func(s *settings) { s.Email = "x" }, []string{`spec.email: Invalid value: "x": must satisfy "email"`}},
		"all at once": {func(s *settings) { s.Name, s.Count = "", 9 }, []string{
			`spec.name: Required value: must be set`, `spec.count: Invalid value: 9: must be at most 3`,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := good()
			c.change(&s)
			faults := New().Struct(&s, field.NewPath("spec"))
			if len(faults) != len(c.want) {
				t.Fatalf("got %v, want %q", faults, c.want)
			}
			for i, fault := range faults {
				if fault.Error() != c.want[i] {
					t.Errorf("got  %s\nwant %s", fault, c.want[i])
				}
			}
		})
	}
}

func TestStructWithoutPathNamesTheFieldAlone(t *testing.T) {
	s := good()
	s.Name = ""
	if faults := New().Struct(s, nil); len(faults) != 1 || faults[0].Field != "name" {
		t.Errorf("got %v", faults)
	}
}

func TestWhatIsNoStructIsAFaultAndNoPanic(t *testing.T) {
	if faults := New().Struct(nil, field.NewPath("spec")); len(faults) != 1 || faults[0].Type != field.ErrorTypeInternal {
		t.Errorf("got %v", faults)
	}
}

// FuzzImageReference: what the rule accepts has no fault text, and what it refuses has one.
func FuzzImageReference(f *testing.F) {
	f.Add("nginx:latest")
	f.Add("A B")
	v := New()
	f.Fuzz(func(t *testing.T, image string) {
		faults := v.Struct(inner{Image: image}, field.NewPath("spec"))
		if refused := image != "" && imageFault(image) != ""; refused != (len(faults) == 1) {
			t.Errorf("%q: %v", image, faults)
		}
	})
}
