// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
	_ "time/tzdata" // The same zones on every machine.

	"k8s.io/apimachinery/pkg/util/validation/field"

	"blackadder.io/blackadder/api/blackadder/v1beta1"
)

func between(from, to string, days ...v1beta1.Weekday) v1beta1.Window {
	return v1beta1.Window{From: from, To: to, Days: days}
}

func windows(zone string, all ...v1beta1.Window) *v1beta1.Schedule {
	return &v1beta1.Schedule{TimeZone: zone, Windows: all}
}

func parsed(t *testing.T, schedule *v1beta1.Schedule) *Schedule {
	t.Helper()
	s, faults := ParseSchedule(schedule, field.NewPath("spec", "schedule"))
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	return s
}

func clock(t *testing.T, text string) time.Time {
	t.Helper()
	read, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		t.Fatal(err)
	}
	return read
}

func TestOpen(t *testing.T) {
	const berlin = "Europe/Berlin"
	// 2026-11-21 is a Saturday.
	for name, c := range map[string]struct {
		schedule     *v1beta1.Schedule
		open, closed []string
	}{
		"no schedule": {nil, []string{"2026-11-21T12:00:00Z", "0001-01-01T00:00:00Z"}, nil},
		"every day": {
			windows("", between("09:30", "17:00")),
			[]string{"2026-11-21T09:30:00Z", "2026-11-21T12:00:00Z", "2026-11-21T16:59:59.999999999Z", "2026-11-23T09:30:00Z", "2026-11-21T09:30:00-01:00"},
			[]string{"2026-11-21T09:29:59.999999999Z", "2026-11-21T17:00:00Z", "2026-11-21T00:00:00Z", "2026-11-21T09:30:00+01:00"},
		},
		"working days": {
			windows("UTC", between("09:00", "17:00", "Mon", "Tue", "Wed", "Thu", "Fri")),
			[]string{"2026-11-20T09:00:00Z", "2026-11-23T16:59:00Z"},
			[]string{"2026-11-20T08:59:00Z", "2026-11-21T12:00:00Z", "2026-11-22T12:00:00Z"},
		},
		"over midnight": {
			windows("", between("22:00", "06:00", "Fri")),
			[]string{"2026-11-20T22:00:00Z", "2026-11-20T23:59:59Z", "2026-11-21T00:00:00Z", "2026-11-21T05:59:59Z"},
			[]string{"2026-11-20T21:59:59Z", "2026-11-20T05:00:00Z", "2026-11-21T06:00:00Z", "2026-11-21T22:00:00Z", "2026-11-20T00:00:00Z"},
		},
		"over midnight into the next week": {
			windows("", between("23:00", "01:00", "Sat")),
			[]string{"2026-11-21T23:00:00Z", "2026-11-22T00:59:00Z"},
			[]string{"2026-11-22T01:00:00Z", "2026-11-22T23:00:00Z", "2026-11-21T00:30:00Z"},
		},
		"over midnight every day": {
			windows("", between("23:59", "00:01")),
			[]string{"2026-11-21T23:59:00Z", "2026-11-21T00:00:59Z"},
			[]string{"2026-11-21T00:01:00Z", "2026-11-21T23:58:59Z", "2026-11-21T12:00:00Z"},
		},
		"to 24:00": {
			windows("", between("22:00", "24:00", "Sat")),
			[]string{"2026-11-21T22:00:00Z", "2026-11-21T23:59:59.999999999Z"},
			[]string{"2026-11-22T00:00:00Z", "2026-11-21T00:00:00Z", "2026-11-20T23:00:00Z"},
		},
		"to 00:00 is the same": {
			windows("", between("22:00", "00:00", "Sat")),
			[]string{"2026-11-21T22:00:00Z", "2026-11-21T23:59:59.999999999Z"},
			[]string{"2026-11-22T00:00:00Z", "2026-11-21T00:00:00Z", "2026-11-20T23:00:00Z"},
		},
		"whole days": {
			windows("", between("00:00", "24:00", "Sat")),
			[]string{"2026-11-21T00:00:00Z", "2026-11-21T23:59:59Z"},
			[]string{"2026-11-20T23:59:59Z", "2026-11-22T00:00:00Z"},
		},
		"always": {
			windows("", between("00:00", "24:00", "Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat")),
			[]string{"2026-11-20T12:00:00Z", "2026-11-21T00:00:00Z", "2026-11-21T23:59:59Z", "2026-11-22T00:00:00Z", "2026-11-23T03:00:00Z"},
			nil,
		},
		"several windows": {
			windows("", between("09:00", "10:00", "Sat"), between("09:30", "11:00", "Sat", "Sun"), between("23:00", "01:00", "Sun")),
			[]string{"2026-11-21T09:00:00Z", "2026-11-21T10:30:00Z", "2026-11-22T10:59:00Z", "2026-11-22T23:30:00Z", "2026-11-23T00:30:00Z"},
			[]string{"2026-11-21T11:00:00Z", "2026-11-22T09:00:00Z", "2026-11-21T23:30:00Z", "2026-11-23T10:00:00Z"},
		},
		"ahead of UTC": {
			windows("Asia/Tokyo", between("00:00", "01:00", "Sun")),
			[]string{"2026-11-21T15:00:00Z", "2026-11-21T15:59:59Z", "2026-11-22T00:30:00+09:00"},
			[]string{"2026-11-21T14:59:59Z", "2026-11-21T16:00:00Z", "2026-11-22T00:30:00Z"},
		},
		"behind UTC": {
			windows("America/New_York", between("20:00", "24:00", "Sat")),
			[]string{"2026-11-22T01:00:00Z", "2026-11-22T04:59:59Z"},
			[]string{"2026-11-21T20:00:00Z", "2026-11-22T05:00:00Z"},
		},
		"no full hour from UTC": {
			windows("Asia/Kathmandu", between("12:00", "12:15")),
			[]string{"2026-11-21T06:15:00Z", "2026-11-21T06:29:59Z"},
			[]string{"2026-11-21T06:14:59Z", "2026-11-21T06:30:00Z", "2026-11-21T12:00:00Z"},
		},
		"summer and winter": {
			windows(berlin, between("12:00", "13:00")),
			[]string{"2026-11-21T11:00:00Z", "2026-07-21T10:00:00Z"},
			[]string{"2026-11-21T10:00:00Z", "2026-07-21T11:00:00Z"},
		},
		"wholly in the gap of spring": {
			windows(berlin, between("02:00", "03:00")),
			[]string{"2026-03-28T01:00:00Z", "2026-03-30T00:00:00Z"},
			[]string{"2026-03-29T00:59:59Z", "2026-03-29T01:00:00Z", "2026-03-29T01:30:00Z", "2026-03-29T00:30:00Z"},
		},
		"begins in the gap of spring": {
			windows(berlin, between("02:30", "03:30", "Sun")),
			[]string{"2026-03-29T01:00:00Z", "2026-03-29T01:29:59Z"},
			[]string{"2026-03-29T00:59:59Z", "2026-03-29T01:30:00Z"},
		},
		"ends in the gap of spring": {
			windows(berlin, between("01:30", "02:30", "Sun")),
			[]string{"2026-03-29T00:30:00Z", "2026-03-29T00:59:59Z"},
			[]string{"2026-03-29T00:29:59Z", "2026-03-29T01:00:00Z"},
		},
		"over midnight and the gap of spring": {
			windows(berlin, between("23:00", "04:00", "Sat")),
			[]string{"2026-03-28T22:00:00Z", "2026-03-29T01:59:59Z"},
			[]string{"2026-03-28T21:59:59Z", "2026-03-29T02:00:00Z"},
		},
		"in the double hour of autumn": {
			windows(berlin, between("02:15", "02:45", "Sun")),
			[]string{"2026-10-25T00:15:00Z", "2026-10-25T00:44:59Z", "2026-10-25T01:15:00Z", "2026-10-25T01:44:59Z"},
			[]string{"2026-10-25T00:14:59Z", "2026-10-25T00:45:00Z", "2026-10-25T01:14:59Z", "2026-10-25T01:45:00Z"},
		},
		"across the double hour of autumn": {
			windows(berlin, between("01:30", "03:30", "Sun")),
			[]string{"2026-10-24T23:30:00Z", "2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", "2026-10-25T02:29:59Z"},
			[]string{"2026-10-24T23:29:59Z", "2026-10-25T02:30:00Z"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := parsed(t, c.schedule)
			for _, text := range c.open {
				if !s.Open(clock(t, text)) {
					t.Errorf("closed at %s", text)
				}
			}
			for _, text := range c.closed {
				if s.Open(clock(t, text)) {
					t.Errorf("open at %s", text)
				}
			}
		})
	}
}

func TestNextOpening(t *testing.T) {
	const berlin = "Europe/Berlin"
	for name, c := range map[string]struct {
		schedule    *v1beta1.Schedule
		after, want string
	}{
		"no schedule":                       {nil, "2026-11-21T12:00:30Z", "2026-11-21T12:01:00Z"},
		"later today":                       {windows("", between("13:00", "14:00")), "2026-11-21T12:00:00Z", "2026-11-21T13:00:00Z"},
		"in less than a minute":             {windows("", between("13:00", "14:00")), "2026-11-21T12:59:59.999Z", "2026-11-21T13:00:00Z"},
		"tomorrow":                          {windows("", between("11:00", "12:00")), "2026-11-21T12:00:00Z", "2026-11-22T11:00:00Z"},
		"in a week, less a minute":          {windows("", between("11:00", "11:01", "Sat")), "2026-11-21T11:01:00Z", "2026-11-28T11:00:00Z"},
		"the full minute, of one that runs": {windows("", between("11:00", "12:00")), "2026-11-21T11:10:10Z", "2026-11-21T11:11:00Z"},
		"after its last minute":             {windows("", between("11:00", "12:00")), "2026-11-21T11:59:10Z", "2026-11-22T11:00:00Z"},
		"at midnight":                       {windows("", between("22:00", "06:00", "Fri")), "2026-11-20T23:59:30Z", "2026-11-21T00:00:00Z"},
		"the first of several":              {windows("", between("15:00", "16:00"), between("13:00", "14:00", "Sat"), between("12:30", "12:40", "Fri")), "2026-11-21T12:00:00Z", "2026-11-21T13:00:00Z"},
		"in another zone":                   {windows("Asia/Tokyo", between("09:00", "10:00")), "2026-11-21T12:00:00Z", "2026-11-22T00:00:00Z"},
		"where the gap of spring ends":      {windows(berlin, between("02:30", "03:30")), "2026-03-29T00:00:00Z", "2026-03-29T01:00:00Z"},
		"on the day after the gap":          {windows(berlin, between("02:00", "03:00")), "2026-03-28T03:00:00Z", "2026-03-30T00:00:00Z"},
		"across the gap of spring, weekly":  {windows(berlin, between("03:00", "04:00", "Sun")), "2026-03-22T03:00:00Z", "2026-03-29T01:00:00Z"},
		"first of the double hour":          {windows(berlin, between("02:15", "02:45")), "2026-10-24T23:59:00Z", "2026-10-25T00:15:00Z"},
		"second of the double hour":         {windows(berlin, between("02:15", "02:45")), "2026-10-25T00:45:00Z", "2026-10-25T01:15:00Z"},
		"across the double hour, weekly":    {windows(berlin, between("04:00", "04:01", "Sun")), "2026-10-18T02:01:00Z", "2026-10-25T03:00:00Z"},
		"after the double hour, weekly":     {windows(berlin, between("02:15", "02:45", "Sun")), "2026-10-25T01:45:00Z", "2026-11-01T01:15:00Z"},
	} {
		t.Run(name, func(t *testing.T) {
			got := parsed(t, c.schedule).NextOpening(clock(t, c.after))
			if want := clock(t, c.want); !got.Equal(want) {
				t.Errorf("got %s, want %s", got.UTC(), want)
			}
		})
	}
}

// Whatever the schedule: at its next opening it is open, and it is not in any minute before.
func TestNothingIsOpenBeforeTheNextOpening(t *testing.T) {
	random := rand.New(rand.NewPCG(14, 15))
	zones := []string{"", "UTC", "Europe/Berlin", "America/New_York", "Asia/Kathmandu", "Australia/Lord_Howe", "America/Santiago", "Pacific/Kiritimati", "Pacific/Pago_Pago"}
	changes := []time.Time{
		clock(t, "2026-03-29T01:00:00Z"), clock(t, "2026-10-25T01:00:00Z"), clock(t, "2026-03-08T07:00:00Z"), clock(t, "2026-11-01T06:00:00Z"),
	}
	clockTime := func(minute int) string { return fmt.Sprintf("%02d:%02d", minute/60, minute%60) }
	for round := range 400 {
		schedule := windows(zones[random.IntN(len(zones))])
		for range 1 + random.IntN(3) {
			days := slices.DeleteFunc(dayNames(), func(v1beta1.Weekday) bool { return random.IntN(3) > 0 })
			// Longer than an hour, so that a change of clocks takes none away in whole.
			from := random.IntN(minutesOfDay)
			to := from + 61 + random.IntN(minutesOfDay-61)
			if to != minutesOfDay {
				to %= minutesOfDay
			}
			schedule.Windows = append(schedule.Windows, between(clockTime(from), clockTime(to), days...))
		}
		s := parsed(t, schedule)
		after := changes[random.IntN(len(changes))].Add(time.Duration(random.Int64N(int64(20*24*time.Hour))) - 10*24*time.Hour)
		next := s.NextOpening(after)
		if !s.Open(next) || !next.After(after) || next.Second() != 0 || next.Nanosecond() != 0 {
			t.Fatalf("round %d: %+v opens after %s at %s", round, schedule, after, next)
		}
		for minute := after.Truncate(time.Minute).Add(time.Minute); minute.Before(next); minute = minute.Add(time.Minute) {
			if s.Open(minute) {
				t.Fatalf("round %d: %+v is open at %s, before %s", round, schedule, minute, next)
			}
		}
	}
}

// Open says the same as a look at the wall clock through the minutes of a week.
func TestOpenAgreesWithTheWallClock(t *testing.T) {
	location, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	s := parsed(t, windows("Europe/Berlin", between("22:30", "02:30", "Sat"), between("09:00", "09:30", "Mon", "Wed")))
	for _, start := range []string{"2026-03-26T00:00:00Z", "2026-10-22T00:00:00Z"} {
		for minute := range 7 * minutesOfDay {
			at := clock(t, start).Add(time.Duration(minute) * time.Minute)
			day, wall := at.In(location).Format("Mon"), at.In(location).Format("15:04")
			want := (day == "Sat" && wall >= "22:30") || (day == "Sun" && wall < "02:30") || ((day == "Mon" || day == "Wed") && wall >= "09:00" && wall < "09:30")
			if got := s.Open(at); got != want {
				t.Fatalf("%s %s (%s): got %t, want %t", day, wall, at, got, want)
			}
		}
	}
}

func TestFaultsOfASchedule(t *testing.T) {
	const (
		zone    = `must be the name of an IANA time zone, such as "Europe/Berlin"`
		clock   = `must be a time of day such as "09:30"`
		differ  = `from and to must differ; for a whole day write from "00:00" to "24:00"`
		allDays = `supported values: "Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"`
	)
	fine := between("09:00", "17:00")
	for name, c := range map[string]struct {
		schedule *v1beta1.Schedule
		want     []string
	}{
		"none":                {nil, nil},
		"fine":                {windows("Europe/Berlin", fine, between("00:00", "24:00", "Mon")), nil},
		"unknown zone":        {windows("Europe/Berlln", fine), []string{`spec.schedule.timeZone: Invalid value: "Europe/Berlln": ` + zone}},
		"the machine's zone":  {windows("Local", fine), []string{`spec.schedule.timeZone: Invalid value: "Local": ` + zone}},
		"the same, small":     {windows("local", fine), []string{`spec.schedule.timeZone: Invalid value: "local": ` + zone}},
		"a path":              {windows("../../etc/passwd", fine), []string{`spec.schedule.timeZone: Invalid value: "../../etc/passwd": ` + zone}},
		"an offset":           {windows("+01:00", fine), []string{`spec.schedule.timeZone: Invalid value: "+01:00": ` + zone}},
		"no window":           {windows(""), []string{`spec.schedule.windows: Required value: without a window no cycle could ever run`}},
		"no hour":             {windows("", between("25:00", "17:00")), []string{`spec.schedule.windows[0].from: Invalid value: "25:00": ` + clock}},
		"no minute":           {windows("", between("09:00", "17:60")), []string{`spec.schedule.windows[0].to: Invalid value: "17:60": ` + clock}},
		"one digit":           {windows("", between("9:00", "17:00")), []string{`spec.schedule.windows[0].from: Invalid value: "9:00": ` + clock}},
		"seconds":             {windows("", between("09:00", "17:00:00")), []string{`spec.schedule.windows[0].to: Invalid value: "17:00:00": ` + clock}},
		"empty":               {windows("", between("", "")), []string{`spec.schedule.windows[0].from: Invalid value: "": ` + clock, `spec.schedule.windows[0].to: Invalid value: "": ` + clock}},
		"from 24:00":          {windows("", between("24:00", "17:00")), []string{`spec.schedule.windows[0].from: Invalid value: "24:00": ` + clock}},
		"beyond 24:00":        {windows("", between("09:00", "24:01")), []string{`spec.schedule.windows[0].to: Invalid value: "24:01": ` + clock}},
		"nothing between":     {windows("", between("09:00", "09:00")), []string{`spec.schedule.windows[0]: Invalid value: "09:00-09:00": ` + differ}},
		"a day as 00:00":      {windows("", between("00:00", "00:00")), []string{`spec.schedule.windows[0]: Invalid value: "00:00-00:00": ` + differ}},
		"unknown days":        {windows("", between("09:00", "17:00", "Mon", "Monday", "mon")), []string{`spec.schedule.windows[0].days: Unsupported value: "Monday": ` + allDays, `spec.schedule.windows[0].days: Unsupported value: "mon": ` + allDays}},
		"only the faulty one": {windows("", fine, between("x", "17:00"), fine), []string{`spec.schedule.windows[1].from: Invalid value: "x": ` + clock}},
		"all at once": {
			windows("Nowhere", between("x", "y", "Z"), between("10:00", "10:00")),
			[]string{
				`spec.schedule.timeZone: Invalid value: "Nowhere": ` + zone,
				`spec.schedule.windows[0].from: Invalid value: "x": ` + clock,
				`spec.schedule.windows[0].to: Invalid value: "y": ` + clock,
				`spec.schedule.windows[0].days: Unsupported value: "Z": ` + allDays,
				`spec.schedule.windows[1]: Invalid value: "10:00-10:00": ` + differ,
			},
		},
		"zone and windows missing": {
			windows("x/y"), []string{
				`spec.schedule.timeZone: Invalid value: "x/y": ` + zone, `spec.schedule.windows: Required value: without a window no cycle could ever run`,
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, faults := ParseSchedule(c.schedule, field.NewPath("spec", "schedule"))
			var got []string
			for _, fault := range faults {
				got = append(got, fault.Error())
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got  %q\nwant %q", got, c.want)
			}
			if (s == nil) != (c.schedule == nil || len(faults) > 0) {
				t.Errorf("faults %v with the schedule %+v", faults, s)
			}
		})
	}
}

// A window that lies wholly in the hour that is skipped opens a week later.
func TestNextOpeningOfAWindowThatAChangeOfClocksTakesAway(t *testing.T) {
	s, faults := ParseSchedule(windows("Europe/Berlin", v1beta1.Window{Days: []v1beta1.Weekday{"Sun"}, From: "02:00", To: "03:00"}), field.NewPath("spec", "schedule"))
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	after := time.Date(2026, 3, 22, 3, 0, 0, 0, time.UTC)
	if got, want := s.NextOpening(after), time.Date(2026, 4, 5, 0, 0, 0, 0, time.UTC); !got.Equal(want) {
		t.Errorf("got %s, want %s", got, want)
	}
}

// FuzzSchedule: nothing makes the parser panic, and whatever it accepts opens at its next opening and not before.
func FuzzSchedule(f *testing.F) {
	f.Add("Europe/Berlin", "02:30", "03:30", "Sun", int64(0))
	f.Add("", "22:00", "24:00", "", int64(1))
	f.Add("Local", "24:00", "00:00", "Monday", int64(-1))
	f.Add("America/New_York", "23:59", "00:00", "Sat", int64(1774742400))
	f.Add("Australia/Lord_Howe", "9:00", "", "Mon", int64(1<<40))
	f.Add("../x", "\xff\xfe:00", "-1:00", "\x00", int64(1<<62))
	f.Fuzz(func(t *testing.T, zone, from, to, day string, seconds int64) {
		window := between(from, to)
		if day != "" {
			window.Days = []v1beta1.Weekday{v1beta1.Weekday(day)}
		}
		s, faults := ParseSchedule(windows(zone, window), field.NewPath("spec", "schedule"))
		if (s == nil) != (len(faults) > 0) {
			t.Fatalf("faults %v with the schedule %+v", faults, s)
		}
		if s == nil {
			return
		}
		// Ten years from 2026 on.
		const decade = 10 * 365 * 24 * 60 * 60
		after := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(time.Duration((seconds%decade+decade)%decade) * time.Second)
		next := s.NextOpening(after)
		if !s.Open(next) || !next.After(after) || next.After(after.Add(15*24*time.Hour)) {
			t.Fatalf("%q %+v opens after %s at %s", zone, window, after, next)
		}
		for minute := after.Truncate(time.Minute).Add(time.Minute); minute.Before(next); minute = minute.Add(time.Minute) {
			if s.Open(minute) {
				t.Fatalf("%q %+v is open at %s, before %s", zone, window, minute, next)
			}
		}
	})
}
