// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"blackadder.io/blackadder/api/blackadder/v1beta1"
)

func anEntry(mode Mode, cycle int64) Entry {
	return Entry{Agent: "storm", AgentUID: "agent-1", Mode: mode, Namespace: "team", Name: "web", UID: "web-1", Cycle: cycle}
}

// kept is an entry after it was written down and read again.
func kept(t *testing.T, entry Entry) *Entry {
	t.Helper()
	text, err := entry.Encode()
	if err != nil {
		t.Fatal(err)
	}
	read, err := DecodeEntry(map[string]string{JournalAnnotation: text})
	if err != nil {
		t.Fatal(err)
	}
	return read
}

func TestScaling(t *testing.T) {
	first := anEntry(Cancer, 1).WithScaling(nil, 2, 4)
	second := anEntry(Cancer, 2).WithScaling(&first, 4, 8)
	for name, c := range map[string]struct {
		entry    Entry
		previous *Entry
		live, to int32
		replicas int32
		wrote    []string
	}{
		"first":                         {anEntry(Cancer, 1), nil, 2, 4, 2, []string{"4"}},
		"again":                         {anEntry(Cancer, 2), &first, 4, 8, 2, []string{"4", "8"}},
		"a third time":                  {anEntry(Cancer, 3), &second, 8, 16, 2, []string{"8", "16"}},
		"the first was never made":      {anEntry(Cancer, 2), &first, 2, 4, 2, []string{"4"}},
		"the second was never made":     {anEntry(Cancer, 3), &second, 4, 8, 2, []string{"4", "8"}},
		"set by somebody else since":    {anEntry(Cancer, 2), &first, 3, 6, 3, []string{"6"}},
		"set to what was written once":  {anEntry(Cancer, 4), ptr.To(anEntry(Cancer, 3).WithScaling(&second, 8, 16)), 4, 8, 4, []string{"8"}},
		"of another agent":              {anEntry(Cancer, 2), ptr.To(func() Entry { e := first; e.AgentUID = "agent-0"; return e }()), 4, 8, 4, []string{"8"}},
		"of an object of the name once": {anEntry(Cancer, 2), ptr.To(func() Entry { e := first; e.UID = "web-0"; return e }()), 4, 8, 4, []string{"8"}},
		"of another mode":               {anEntry(Cancer, 2), ptr.To(func() Entry { e := first; e.Mode = Ipsum; return e }()), 4, 8, 4, []string{"8"}},
	} {
		t.Run(name, func(t *testing.T) {
			var before Entry
			if c.previous != nil {
				before = *c.previous
				before.Wrote = slices.Clone(before.Wrote)
			}
			got := c.entry.WithScaling(c.previous, c.live, c.to)
			want := c.entry
			want.Replicas, want.Wrote = c.replicas, c.wrote
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if c.previous != nil && !cmp.Equal(before, *c.previous) {
				t.Errorf("the previous entry became %+v", c.previous)
			}
		})
	}
}

func TestRestoredReplicas(t *testing.T) {
	entry := anEntry(Cancer, 2)
	entry.Replicas, entry.Wrote = 2, []string{"4", "8"}
	for name, c := range map[string]struct {
		live, want      int32
		restore, scaled bool
	}{
		"what was written last":      {8, 2, true, true},
		"what was written before":    {4, 2, true, false},
		"back already":               {2, 2, false, false},
		"set by somebody else":       {5, 5, false, false},
		"scaled to 0":                {0, 0, false, false},
		"beyond what was written":    {16, 16, false, false},
		"a number that begins alike": {80, 80, false, false},
	} {
		if got, restore := entry.RestoredReplicas(c.live); got != c.want || restore != c.restore {
			t.Errorf("%s: got %d, %t, want %d, %t", name, got, restore, c.want, c.restore)
		}
		if got := entry.Scaled(c.live); got != c.scaled {
			t.Errorf("%s: scaled %t, want %t", name, got, c.scaled)
		}
	}
	if nothing := (&Entry{}); nothing.Scaled(0) {
		t.Error("an entry without anything written counts as scaled")
	}
}

// scenario is a Deployment that an agent scales in cycles, that is interrupted at any moment, and that somebody else scales, too.
type scenario struct {
	t      *testing.T
	random *rand.Rand
	// entry is the journal's.
	entry *Entry
	uid   types.UID
	live  int32
	// original is what the Deployment has to have when all is put back, and mine tells that live is the agent's.
	original int32
	mine     bool
	cycles   int64
}

func (s *scenario) foreign() {
	replicas := int32(s.random.IntN(140))
	// What the agent has written, or was about to, cannot be told from its own.
	if s.entry != nil && slices.Contains(s.entry.Wrote, strconv.Itoa(int(replicas))) {
		return
	}
	s.live, s.original, s.mine = replicas, replicas, false
}

// cycle is a new one, or one that is gone on with.
func (s *scenario) cycle() {
	resumed := s.cycles > 0 && s.random.IntN(3) == 0
	if !resumed {
		s.cycles++
	}
	spec := &v1beta1.ChaosAgentSpec{}
	if s.random.IntN(4) == 0 {
		spec.MaxReplicas = ptr.To(int32(1 + s.random.IntN(128)))
	}
	for {
		if resumed && s.entry != nil && s.entry.UID == s.uid && s.entry.Cycle == s.cycles && s.entry.Scaled(s.live) {
			return
		}
		object := aDeployment("web", scaled(s.live))
		if scale(&Filter{spec: spec}, &object) != "" {
			return
		}
		if s.random.IntN(5) == 0 {
			return // The operator ends before the journal is written.
		}
		entry := anEntry(Cancer, s.cycles)
		entry.UID = s.uid
		to := Doubled(spec, s.live)
		s.entry = kept(s.t, entry.WithScaling(s.entry, s.live, to))
		switch s.random.IntN(5) {
		case 0:
			return // The operator ends before the change is made.
		case 1:
			before := s.live
			if s.foreign(); s.live != before {
				continue // The change meets a conflict.
			}
		}
		s.live, s.mine = to, true
		return
	}
}

func (s *scenario) restore(crashes bool) {
	if s.entry == nil || (crashes && s.random.IntN(4) == 0) {
		return
	}
	if s.entry.UID == s.uid {
		to, restore := s.entry.RestoredReplicas(s.live)
		switch {
		case restore && !s.mine:
			s.t.Fatalf("%d of somebody else would become %d: %+v", s.live, to, s.entry)
		case !restore && to != s.live:
			s.t.Fatalf("nothing to put back, but %d became %d", s.live, to)
		}
		s.live, s.mine = to, false
		if s.live != s.original {
			s.t.Fatalf("put back to %d, which was %d: %+v", s.live, s.original, s.entry)
		}
	}
	if crashes && s.random.IntN(4) == 0 {
		return // The operator ends before the entry is removed.
	}
	s.entry = nil
}

func TestScalingIsPutBackWhateverHappens(t *testing.T) {
	random := rand.New(rand.NewPCG(16, 17))
	restored := 0
	for range 3000 {
		s := &scenario{t: t, random: random, uid: "web-1", live: int32(random.IntN(20))}
		s.original = s.live
		for range 1 + random.IntN(15) {
			switch random.IntN(8) {
			case 0:
				s.foreign()
			case 1:
				s.restore(true)
			case 2:
				if random.IntN(4) == 0 {
					// It is deleted and made anew.
					s.uid = types.UID(fmt.Sprintf("web-%d", random.Uint32()))
					s.live, s.mine = int32(random.IntN(20)), false
					s.original = s.live
				}
			default:
				s.cycle()
			}
		}
		if s.mine {
			restored++
		}
		s.restore(false)
		if s.live != s.original {
			t.Fatalf("%d replicas in the end, instead of %d", s.live, s.original)
		}
	}
	if restored < 1000 {
		t.Errorf("only %d of the sequences left something to put back", restored)
	}
}

func TestText(t *testing.T) {
	wroteA, wroteB, wroteC := hashOf("A"), hashOf("B"), hashOf("C")
	data := func(pairs ...string) map[string]string {
		m := map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i]] = pairs[i+1]
		}
		return m
	}
	first := anEntry(Ipsum, 1)
	first.Wrote = []string{wroteA}
	second := anEntry(Ipsum, 2)
	second.Wrote = []string{wroteA, wroteB}
	stranger := first
	stranger.AgentUID = "agent-0"
	for name, c := range map[string]struct {
		previous        *Entry
		originals, live map[string]string
		text            string
		wrote           []string
		kept            map[string]string
	}{
		"first":                      {nil, nil, data("x", "1", "y", "2"), "A", []string{wroteA}, data("x", "1", "y", "2")},
		"again":                      {&first, data("x", "1", "y", "2"), data("x", "A", "y", "A"), "B", []string{wroteA, wroteB}, data("x", "1", "y", "2")},
		"a third time":               {&second, data("x", "1"), data("x", "B"), "C", []string{wroteB, wroteC}, data("x", "1")},
		"the first was never made":   {&first, data("x", "1"), data("x", "1"), "B", []string{wroteB}, data("x", "1")},
		"the second was never made":  {&second, data("x", "1"), data("x", "A"), "C", []string{wroteA, wroteC}, data("x", "1")},
		"the same text again":        {&first, data("x", "1"), data("x", "A"), "A", []string{wroteA}, data("x", "1")},
		"one set by somebody else":   {&first, data("x", "1", "y", "2"), data("x", "A", "y", "3"), "B", []string{wroteA, wroteB}, data("x", "1", "y", "3")},
		"all set by somebody else":   {&first, data("x", "1", "y", "2"), data("x", "4", "y", "3"), "B", []string{wroteB}, data("x", "4", "y", "3")},
		"a key is new":               {&first, data("x", "1"), data("x", "A", "y", "3"), "B", []string{wroteA, wroteB}, data("x", "1", "y", "3")},
		"a key is gone":              {&first, data("x", "1", "y", "2"), data("x", "A"), "B", []string{wroteA, wroteB}, data("x", "1")},
		"a new key with the text":    {&first, data("x", "1"), data("y", "A"), "B", []string{wroteB}, data("y", "A")},
		"of another agent":           {&stranger, data("x", "1"), data("x", "A"), "B", []string{wroteB}, data("x", "A")},
		"empty values are originals": {&first, data("x", ""), data("x", "A"), "B", []string{wroteA, wroteB}, data("x", "")},
	} {
		t.Run(name, func(t *testing.T) {
			originals, live := maps.Clone(c.originals), maps.Clone(c.live)
			entry, kept := anEntry(Ipsum, 3).WithText(c.previous, c.originals, c.live, c.text)
			want := anEntry(Ipsum, 3)
			want.Wrote = c.wrote
			if diff := cmp.Diff(want, entry) + cmp.Diff(c.kept, kept); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if !maps.Equal(originals, c.originals) || !maps.Equal(live, c.live) {
				t.Errorf("what was given became %v and %v", c.originals, c.live)
			}
		})
	}
}

func TestRestoredData(t *testing.T) {
	entry := anEntry(Ipsum, 2)
	entry.Wrote = []string{hashOf("A"), hashOf("B")}
	originals := map[string]string{"x": "1", "y": "2", "z": "", "same": "A"}
	type data = map[string]string
	for name, c := range map[string]struct {
		live, want           data
		restore, overwritten bool
	}{
		"what was written last":     {data{"x": "B", "y": "B", "z": "B"}, data{"x": "1", "y": "2", "z": ""}, true, true},
		"what was written before":   {data{"x": "A", "y": "A", "z": "A"}, data{"x": "1", "y": "2", "z": ""}, true, false},
		"some by somebody else":     {data{"x": "B", "y": "3", "z": "B"}, data{"x": "1", "y": "3", "z": ""}, true, false},
		"all by somebody else":      {data{"x": "4", "y": "3", "z": "5"}, data{"x": "4", "y": "3", "z": "5"}, false, false},
		"back already":              {data{"x": "1", "y": "2", "z": ""}, data{"x": "1", "y": "2", "z": ""}, false, false},
		"some back already":         {data{"x": "1", "y": "B", "z": ""}, data{"x": "1", "y": "2", "z": ""}, true, false},
		"a key is new":              {data{"x": "B", "new": "5"}, data{"x": "1", "new": "5"}, true, false},
		"a key is new, by the text": {data{"new": "B"}, data{"new": "B"}, false, true},
		"the text was the original": {data{"same": "A"}, data{"same": "A"}, false, false},
		"keys that are gone stay":   {data{"y": "B"}, data{"y": "2"}, true, true},
		"all keys are gone":         {nil, nil, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			before := maps.Clone(c.live)
			got, restore := entry.RestoredData(originals, c.live)
			if diff := cmp.Diff(c.want, got); diff != "" || restore != c.restore {
				t.Errorf("restore %t, want %t, (-want +got)\n%s", restore, c.restore, diff)
			}
			if overwritten := entry.Overwritten(c.live); overwritten != c.overwritten {
				t.Errorf("overwritten %t, want %t", overwritten, c.overwritten)
			}
			if !maps.Equal(before, c.live) {
				t.Errorf("what was given became %v", c.live)
			}
		})
	}
	if (&Entry{}).Overwritten(data{"x": "1"}) || (&Entry{}).Overwritten(nil) {
		t.Error("an entry without anything written counts as overwritten")
	}
}

// story is the same as scenario, of a ConfigMap.
type story struct {
	t      *testing.T
	random *rand.Rand
	// entry and originals are the journal's.
	entry     *Entry
	originals map[string]string
	live      map[string]string
	// users are the values of everybody but the agent; mine are the keys with values of the agent's.
	users  map[string]string
	mine   map[string]bool
	values int
	cycles int64
}

func (s *story) foreign() {
	for range 1 + s.random.IntN(2) {
		key := string(rune('a' + s.random.IntN(5)))
		delete(s.mine, key)
		if s.random.IntN(4) == 0 {
			delete(s.live, key)
			delete(s.users, key)
			continue
		}
		s.values++
		s.live[key] = fmt.Sprintf("value %d", s.values)
		if s.random.IntN(6) == 0 {
			s.live[key] = ""
		}
		s.users[key] = s.live[key]
	}
}

func (s *story) cycle() {
	resumed := s.cycles > 0 && s.random.IntN(3) == 0
	if !resumed {
		s.cycles++
	}
	for {
		if resumed && s.entry != nil && s.entry.Cycle == s.cycles && s.entry.Overwritten(s.live) {
			return
		}
		if len(s.live) == 0 || s.random.IntN(5) == 0 {
			return // The operator ends before the journal is written.
		}
		text := Lorem(7, s.cycles, Key{Ipsum, "team", "web"}, s.live, nil)
		entry, originals := anEntry(Ipsum, s.cycles).WithText(s.entry, s.originals, s.live, text)
		s.entry, s.originals = kept(s.t, entry), originals
		switch s.random.IntN(5) {
		case 0:
			return // The operator ends before the change is made.
		case 1:
			s.foreign()
			continue // The change meets a conflict.
		}
		for key := range s.live {
			s.live[key], s.mine[key] = text, true
		}
		return
	}
}

func (s *story) restore(crashes bool) {
	if s.entry == nil || (crashes && s.random.IntN(4) == 0) {
		return
	}
	data, restore := s.entry.RestoredData(s.originals, s.live)
	for key, value := range s.live {
		if !s.mine[key] && data[key] != value {
			s.t.Fatalf("%q of somebody else under %s would become %q", value, key, data[key])
		}
	}
	if !restore && !maps.Equal(data, s.live) {
		s.t.Fatalf("nothing to put back, but %v became %v", s.live, data)
	}
	if !maps.Equal(data, s.users) {
		s.t.Fatalf("put back to %v, which was %v: %+v", data, s.users, s.entry)
	}
	s.live, s.mine = data, map[string]bool{}
	if crashes && s.random.IntN(4) == 0 {
		return // The operator ends before the entry is removed.
	}
	s.entry, s.originals = nil, nil
}

func TestTextIsPutBackWhateverHappens(t *testing.T) {
	random := rand.New(rand.NewPCG(18, 19))
	restored := 0
	for range 1500 {
		s := &story{t: t, random: random, live: map[string]string{}, users: map[string]string{}, mine: map[string]bool{}}
		s.foreign()
		for range 1 + random.IntN(15) {
			switch random.IntN(6) {
			case 0:
				s.foreign()
			case 1:
				s.restore(true)
			default:
				s.cycle()
			}
		}
		if len(s.mine) > 0 {
			restored++
		}
		s.restore(false)
		if !maps.Equal(s.live, s.users) {
			t.Fatalf("%v in the end, instead of %v", s.live, s.users)
		}
	}
	if restored < 500 {
		t.Errorf("only %d of the sequences left something to put back", restored)
	}
}

func TestEntryIsWrittenAsItAlwaysWas(t *testing.T) {
	// The next version of the operator has to read it.
	entry := anEntry(Cancer, 7).WithScaling(nil, 2, 4)
	const want = `{"agent":"storm","agentUID":"agent-1","mode":"cancer","namespace":"team","name":"web","uid":"web-1","cycle":7,"replicas":2,"wrote":["4"]}`
	if text, err := entry.Encode(); err != nil || text != want {
		t.Errorf("got %s, %v", text, err)
	}
	read, err := DecodeEntry(map[string]string{"other": "x", JournalAnnotation: want})
	if diff := cmp.Diff(&entry, read); diff != "" || err != nil {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
	if got := entry.String(); got != "Deployment team/web" {
		t.Errorf("it is called %s", got)
	}
}

func TestEntryThatCannotBeRead(t *testing.T) {
	const nameless = "its annotation blackadder.io/chaos-journal-entry names no object"
	for text, want := range map[string]string{
		"":                                     "its annotation blackadder.io/chaos-journal-entry: unexpected end of JSON input",
		"{":                                    "its annotation blackadder.io/chaos-journal-entry: unexpected end of JSON input",
		"x":                                    "its annotation blackadder.io/chaos-journal-entry: invalid character 'x' looking for beginning of value",
		"null":                                 nameless,
		"{}":                                   nameless,
		`{"namespace":"team","name":"web"}`:    nameless,
		`{"mode":"cancer","name":"web"}`:       nameless,
		`{"mode":"cancer","namespace":"team"}`: nameless,
		`{"mode":"x","namespace":"a","name":"b"}`: nameless,
	} {
		if entry, err := DecodeEntry(map[string]string{JournalAnnotation: text}); err == nil || err.Error() != want || entry != nil {
			t.Errorf("%q: got %v, %v\nwant %s", text, entry, err, want)
		}
	}
	for _, text := range []string{"[]", "1", `{"cycle":"x"}`, `{"wrote":7}`, `{"replicas":4294967296}`, `{"mode":"cancer","namespace":"a","name":"b"} x`} {
		entry, err := DecodeEntry(map[string]string{JournalAnnotation: text})
		if err == nil || !strings.HasPrefix(err.Error(), "its annotation blackadder.io/chaos-journal-entry: ") || entry != nil {
			t.Errorf("%q: got %v, %v", text, entry, err)
		}
	}
	for _, annotations := range []map[string]string{nil, {}, {"other": "x"}} {
		if entry, err := DecodeEntry(annotations); err == nil || err.Error() != "it has no annotation blackadder.io/chaos-journal-entry" || entry != nil {
			t.Errorf("%v: got %v, %v", annotations, entry, err)
		}
	}
}

func TestJournalName(t *testing.T) {
	// The next version of the operator has to find it.
	for key, want := range map[Key]string{
		{Cancer, "team", "web"}: "chaos-56256076c00b8c67e56bb81e6ae0b07d4688a365",
		{Ipsum, "team", "web"}:  "chaos-6aa34181f2fd99353e442ff35674a2587775d33b",
	} {
		if got := JournalName(key); got != want {
			t.Errorf("%s: got %s, want %s", key, got, want)
		}
	}
	random := rand.New(rand.NewPCG(20, 21))
	seen := map[string]Key{}
	for _, mode := range Modes() {
		for _, namespace := range []string{"a", "a-b", "ab", "a.b", strings.Repeat("n", 63)} {
			for _, name := range []string{"c", "b-c", "b.c", "system:web", strings.Repeat("x", 253), strconv.FormatUint(random.Uint64(), 10)} {
				key := Key{mode, namespace, name}
				got := JournalName(key)
				if faults := validation.IsDNS1123Subdomain(got); len(faults) > 0 {
					t.Errorf("%s: %s: %q", key, got, faults)
				}
				if got != JournalName(key) {
					t.Errorf("%s: another name each time", key)
				}
				if other, taken := seen[got]; taken {
					t.Errorf("%s and %s are both called %s", key, other, got)
				}
				seen[got] = key
			}
		}
	}
	if faults := validation.IsQualifiedName(JournalLabel); len(faults) > 0 {
		t.Errorf("label %s: %q", JournalLabel, faults)
	}
	if faults := validation.IsQualifiedName(JournalAnnotation); len(faults) > 0 {
		t.Errorf("annotation %s: %q", JournalAnnotation, faults)
	}
	if faults := validation.IsValidLabelValue(JournalAbandoned); len(faults) > 0 {
		t.Errorf("%s: %q", JournalAbandoned, faults)
	}
}

func TestKeyIsNamedForPeople(t *testing.T) {
	for key, want := range map[Key]string{
		{Tantrum, "team", "web"}: "Pod team/web", {Cancer, "team", "web"}: "Deployment team/web", {Ipsum, "a", "b"}: "ConfigMap a/b",
	} {
		if got := key.String(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// FuzzJournalEntry: nothing makes the decoder panic, and whatever is written down is read again as it was.
func FuzzJournalEntry(f *testing.F) {
	f.Add(`{"agent":"storm","agentUID":"agent-1","mode":"cancer","namespace":"team","name":"web","uid":"web-1","cycle":7,"replicas":2,"wrote":["4"]}`, "storm", "team", "web", "4", int64(7), int32(2), uint8(1))
	f.Add(`{"mode":"ipsum","namespace":"a","name":"b","wrote":null,"more":[{}]}`, "", "", "", "", int64(-1), int32(-1), uint8(2))
	f.Add(`{"mode":"tantrum"`, "\"\\<>&", "\u2028", "\x00", "😀", int64(1<<62), int32(1<<30), uint8(0))
	f.Add("null", "a", "b", "c", "d", int64(0), int32(0), uint8(200))
	f.Fuzz(func(t *testing.T, text, agent, namespace, name, wrote string, cycle int64, replicas int32, mode uint8) {
		if entry, err := DecodeEntry(map[string]string{JournalAnnotation: text}); (entry == nil) != (err != nil) {
			t.Fatalf("%q: %v, %v", text, entry, err)
		} else if err == nil {
			if diff := cmp.Diff(entry, kept(t, *entry)); diff != "" {
				t.Errorf("%q (-want +got)\n%s", text, diff)
			}
		}
		valid := func(text string) string { return strings.ToValidUTF8(text, "?") }
		entry := &Entry{
			Agent: valid(agent), AgentUID: types.UID(valid(agent)), Mode: Modes()[int(mode)%3], Namespace: valid(namespace), Name: valid(name),
			UID: types.UID(valid(name)), Cycle: cycle, Replicas: replicas, Wrote: []string{valid(wrote), valid(text)},
		}
		encoded, err := entry.Encode()
		if err != nil {
			t.Fatal(err)
		}
		read, err := DecodeEntry(map[string]string{JournalAnnotation: encoded})
		if entry.Namespace == "" || entry.Name == "" {
			if err == nil {
				t.Errorf("%s was read without a name of an object", encoded)
			}
			return
		}
		if diff := cmp.Diff(entry, read); diff != "" || err != nil {
			t.Errorf("%v (-want +got)\n%s", err, diff)
		}
	})
}
