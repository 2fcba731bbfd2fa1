package integration

import (
	"strings"

	"github.com/pushfx/pushfx/module/commit"
)

// unstamped takes the stamp out of a stored event.
func unstamped(event string) (string, commit.Stamp) {
	open, text, found := strings.Cut(event, `,"commit":`)
	if !found {
		return event, commit.Stamp{}
	}
	return open + "}", commit.ReadStamp(strings.TrimSuffix(text, "}"))
}

// unstampedFields takes the stamp out of a stored hash of pushers.
func unstampedFields(fields map[string]string) commit.Stamp {
	stamp := commit.ReadStamp(fields["commit"])
	delete(fields, "commit")
	return stamp
}
