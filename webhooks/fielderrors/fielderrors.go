// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

// Package fielderrors turns the faults that go-playground/validator finds in a tagged struct into the API's field
// errors, so that flags, admission and status speak of a fault in the same words.
package fielderrors

import (
	"errors"
	"fmt"
	"net"
	"reflect"
	"strconv"
	"strings"

	"github.com/distribution/reference"
	"github.com/go-playground/validator/v10"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Validator checks structs by their `validate` tags. Beside validator's own tags it knows:
//   - image_reference: an image reference, as the container runtimes parse it;
//   - listen_address: host:port to listen on, where the host may be empty, or "0" for not listening;
//   - namespace_name: a name that a Namespace can have.
//
// It is safe for concurrent use.
type Validator struct {
	validate *validator.Validate
}

// New is a Validator that names fields by their JSON names.
func New() *Validator {
	v := validator.New(validator.WithRequiredStructEnabled())
	v.RegisterTagNameFunc(func(f reflect.StructField) string {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "-" {
			return ""
		}
		return name
	})
	for tag, fault := range customFaults() {
		// Registration fails only for an empty tag or a nil function.
		if err := v.RegisterValidation(tag, func(fl validator.FieldLevel) bool { return fault(fl.Field().String()) == "" }); err != nil {
			panic(err)
		}
	}
	return &Validator{validate: v}
}

// Struct checks a struct, or a pointer to one, and returns every fault below the given path; nil if there is none.
func (v *Validator) Struct(value any, path *field.Path) field.ErrorList {
	err := v.validate.Struct(value)
	if err == nil {
		return nil
	}
	var faults validator.ValidationErrors
	if !errors.As(err, &faults) {
		return field.ErrorList{field.InternalError(path, err)}
	}
	list := make(field.ErrorList, 0, len(faults))
	for _, fault := range faults {
		list = append(list, fieldError(fault, path))
	}
	return list
}

func fieldError(fault validator.FieldError, path *field.Path) *field.Error {
	// The namespace begins with the name of the struct's type, which the path stands for.
	_, name, _ := strings.Cut(fault.Namespace(), ".")
	at := field.NewPath(name)
	if path != nil {
		at = path.Child(name)
	}
	if custom, known := customFaults()[fault.Tag()]; known {
		return field.Invalid(at, fault.Value(), custom(fmt.Sprint(fault.Value())))
	}
	switch fault.Tag() {
	case "required":
		return field.Required(at, "must be set")
	case "oneof":
		return field.NotSupported(at, fmt.Sprint(fault.Value()), strings.Fields(fault.Param()))
	case "ne":
		return field.Invalid(at, fault.Value(), "must not be "+fault.Param())
	case "min", "gte":
		return field.Invalid(at, fault.Value(), "must be at least "+fault.Param())
	case "max", "lte":
		return field.Invalid(at, fault.Value(), "must be at most "+fault.Param())
	case "dir":
		return field.Invalid(at, fault.Value(), "must be an existing folder")
	case "file":
		return field.Invalid(at, fault.Value(), "must be an existing file")
	}
	return field.Invalid(at, fault.Value(), fmt.Sprintf("must satisfy %q", strings.TrimSuffix(fault.Tag()+"="+fault.Param(), "=")))
}

// customFaults say what is wrong with a value; "" if nothing is.
func customFaults() map[string]func(string) string {
	return map[string]func(string) string{
		"image_reference": imageFault,
		"listen_address":  listenAddressFault,
		"namespace_name":  namespaceFault,
	}
}

func imageFault(value string) string {
	if _, err := reference.ParseDockerRef(value); err != nil {
		return fmt.Sprintf(`must be an image reference such as "nginx:1.29" or "registry.example.com/team/app@sha256:…": %v`, err)
	}
	return ""
}

func listenAddressFault(value string) string {
	if value == "0" {
		return ""
	}
	host, port, err := net.SplitHostPort(value)
	if err != nil {
		return `must be host:port, such as "127.0.0.1:9443" or ":9443"`
	}
	if host != "" && net.ParseIP(host) == nil && host != "localhost" {
		return "must have an IP address, localhost or nothing as its host"
	}
	if number, err := strconv.ParseUint(port, 10, 16); err != nil || number < 1 {
		return "must have a port between 1 and 65535"
	}
	return ""
}

func namespaceFault(value string) string {
	return strings.Join(validation.IsDNS1123Label(value), "; ")
}
