// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestLoremIsTheSameForTheSameSeedCycleAndObject(t *testing.T) {
	data := map[string]string{"a": "1", "b": "2"}
	key := Key{Ipsum, "team", "web"}
	text := Lorem(1, 2, key, data, nil)
	if again := Lorem(1, 2, key, map[string]string{"b": "22", "c": "1"}, nil); again != text {
		t.Errorf("first %q, then %q", text, again)
	}
	if len(text) < 50 || !strings.Contains(text, " ") || !utf8.ValidString(text) || strings.ContainsAny(text, "\n\x00") {
		t.Errorf("%q is no paragraph", text)
	}
	seen := map[string]string{text: "the first"}
	for name, other := range map[string]string{
		"another seed":      Lorem(2, 2, key, data, nil),
		"another cycle":     Lorem(1, 3, key, data, nil),
		"both swapped":      Lorem(2, 1, key, data, nil),
		"another name":      Lorem(1, 2, Key{Ipsum, "team", "db"}, data, nil),
		"another namespace": Lorem(1, 2, Key{Ipsum, "apps", "web"}, data, nil),
		"a negative seed":   Lorem(-1, 2, key, data, nil),
		"digits moved":      Lorem(11, 2, key, data, nil),
		"digits moved back": Lorem(1, 12, key, data, nil),
	} {
		if same, taken := seen[other]; taken {
			t.Errorf("%s is the same as %s", name, same)
		}
		seen[other] = name
	}
}

func sized(keys, bytes int) map[string]string {
	data := make(map[string]string, keys)
	for i := range keys {
		data[strconv.Itoa(i)] = strings.Repeat("x", bytes)
	}
	return data
}

func TestLoremFits(t *testing.T) {
	key := Key{Ipsum, "team", "web"}
	whole := len(Lorem(1, 1, key, sized(1, 0), nil))
	binary := func(n int) map[string][]byte {
		return map[string][]byte{"a": make([]byte, n/2), "b": make([]byte, n-n/2)}
	}
	for name, c := range map[string]struct {
		data   map[string]string
		binary map[string][]byte
		want   int
	}{
		"no keys":                   {nil, nil, whole},
		"one empty key":             {sized(1, 0), nil, whole},
		"many keys share 64 KiB":    {sized(1024, 1), nil, 64},
		"a letter each":             {sized(64<<10, 0), nil, 1},
		"not a letter each":         {sized(64<<10+1, 0), nil, 0},
		"a letter more than 64 KiB": {sized(64<<10+1, 1), nil, 1},
		"as much as before":         {sized(16<<10, 8), nil, 8},
		"a whole MiB":               {sized(16<<10, 64), nil, 64},
		"beyond a MiB":              {sized(1<<10, 2048), nil, min(whole, 1024)},
		"beside binary data":        {sized(1024, 1), binary(1<<20 - 10<<10), 10},
		"no room beside binary":     {sized(1, 1), binary(1 << 20), 0},
		"a letter beside binary":    {sized(1, 1), binary(1<<20 - 1), 1},
		"binary data beyond a MiB":  {sized(3, 1), binary(1<<20 + 100), 0},
	} {
		t.Run(name, func(t *testing.T) {
			text := Lorem(1, 1, key, c.data, c.binary)
			if len(text) != c.want {
				t.Errorf("%d bytes, want %d", len(text), c.want)
			}
			if text != "" && len(c.data) > 0 && !strings.HasPrefix(Lorem(1, 1, key, sized(1, 0), nil), text) {
				t.Errorf("%q is no beginning of the paragraph", text)
			}
		})
	}
}

func TestLoremIsBounded(t *testing.T) {
	random := rand.New(rand.NewPCG(22, 23))
	for range 300 {
		data, size := map[string]string{}, 0
		most := 1 << random.IntN(12)
		for i := range random.IntN(1 << random.IntN(14)) {
			value := strings.Repeat("ä", random.IntN(most))
			data[strconv.Itoa(i)] = value
			if size += len(value); size > 2<<20 {
				break
			}
		}
		var binaryData map[string][]byte
		binary := 0
		if random.IntN(2) == 0 {
			binary = random.IntN(2 << 20)
			binaryData = map[string][]byte{"binary": make([]byte, binary)}
		}
		text := Lorem(random.Int64(), random.Int64(), Key{Ipsum, "team", "web"}, data, binaryData)
		sum := len(text) * len(data)
		if sum > 0 && (sum > 1<<20-binary || sum > max(size, 64<<10)) {
			t.Fatalf("%d keys of %d bytes beside %d became %d bytes", len(data), size, binary, sum)
		}
		if !utf8.ValidString(text) {
			t.Fatalf("%q was cut within a letter", text)
		}
	}
}
