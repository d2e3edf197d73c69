// Copyright The Blackadder Authors.
// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"fmt"
	"slices"
	"strings"
	"time"
	// A time zone must not be unknown because the image, or a developer's machine, has no list of them.
	_ "time/tzdata"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"blackadder.io/blackadder/api/blackadder/v1beta1"
)

// Schedule is when cycles may run.
type Schedule struct {
	location *time.Location
	windows  []window
}

// window is a span of minutes of the day, on some days.
type window struct {
	days     []time.Weekday
	from, to int
}

const minutesOfDay = 24 * 60

// ParseSchedule reads a schedule; nil, which is open at any time, for none. The faults are below the given path.
func ParseSchedule(schedule *v1beta1.Schedule, path *field.Path) (*Schedule, field.ErrorList) {
	if schedule == nil {
		return nil, nil
	}
	var faults field.ErrorList
	parsed := &Schedule{}
	var err error
	// The library takes Local, the zone of whatever machine the operator runs on, for a name.
	if parsed.location, err = time.LoadLocation(schedule.TimeZone); err != nil || strings.EqualFold(schedule.TimeZone, "local") {
		faults = append(faults, field.Invalid(path.Child("timeZone"), schedule.TimeZone, `must be the name of an IANA time zone, such as "Europe/Berlin"`))
	}
	if len(schedule.Windows) == 0 {
		faults = append(faults, field.Required(path.Child("windows"), "without a window no cycle could ever run"))
	}
	for i, text := range schedule.Windows {
		at := path.Child("windows").Index(i)
		from, fromFault := minuteOfDay(text.From)
		if fromFault != nil {
			faults = append(faults, field.Invalid(at.Child("from"), text.From, fromFault.Error()))
		}
		to, toFault := minuteOfDay(text.To)
		if text.To == "24:00" {
			to, toFault = minutesOfDay, nil
		}
		if toFault != nil {
			faults = append(faults, field.Invalid(at.Child("to"), text.To, toFault.Error()))
		}
		if fromFault == nil && toFault == nil && from == to {
			faults = append(faults, field.Invalid(at, text.From+"-"+text.To, `from and to must differ; for a whole day write from "00:00" to "24:00"`))
		}
		days, unknown := weekdays(text.Days)
		for _, day := range unknown {
			faults = append(faults, field.NotSupported(at.Child("days"), day, dayNames()))
		}
		parsed.windows = append(parsed.windows, window{days: days, from: from, to: to})
	}
	if len(faults) > 0 {
		return nil, faults
	}
	return parsed, nil
}

func minuteOfDay(text string) (int, error) {
	parsed, err := time.Parse("15:04", text)
	if err != nil || len(text) != len("15:04") {
		return 0, fmt.Errorf("must be a time of day such as %q", "09:30")
	}
	return parsed.Hour()*60 + parsed.Minute(), nil
}

func dayNames() []v1beta1.Weekday {
	return []v1beta1.Weekday{"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"}
}

func weekdays(names []v1beta1.Weekday) (days []time.Weekday, unknown []v1beta1.Weekday) {
	for _, name := range names {
		if i := slices.Index(dayNames(), name); i >= 0 {
			days = append(days, time.Weekday(i))
		} else {
			unknown = append(unknown, name)
		}
	}
	return days, unknown
}

// Open tells whether cycles may run at a time.
func (s *Schedule) Open(at time.Time) bool {
	if s == nil {
		return true
	}
	local := at.In(s.location)
	minute := local.Hour()*60 + local.Minute()
	today := local.Weekday()
	yesterday := (today + 6) % 7
	return slices.ContainsFunc(s.windows, func(w window) bool {
		if w.from < w.to {
			return w.opens(today) && w.from <= minute && minute < w.to
		}
		return (w.opens(today) && w.from <= minute) || (w.opens(yesterday) && minute < w.to)
	})
}

func (w window) opens(day time.Weekday) bool { return len(w.days) == 0 || slices.Contains(w.days, day) }

// NextOpening is the first full minute after a time at which the schedule is open; zero if there is none, which a parsed
// schedule never says. It looks at each minute, because only so do the gaps and doubles of daylight saving time need no rule
// of their own: a window that begins inside a gap opens where the gap ends.
func (s *Schedule) NextOpening(after time.Time) time.Time {
	// Beyond a week the windows repeat; the next week covers a window that a change of clocks takes away.
	for minute := after.Truncate(time.Minute).Add(time.Minute); minute.Before(after.Add(15 * 24 * time.Hour)); minute = minute.Add(time.Minute) {
		if s.Open(minute) {
			return minute
		}
	}
	return time.Time{}
}
