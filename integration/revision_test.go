package integration

import (
	"strings"

	"github.com/pushfx/pushfx/module/stored"
)

func withoutRevision(event string) (string, stored.Revision) {
	open, text, found := strings.Cut(event, `,"revision":`)
	if !found {
		return event, stored.Revision{}
	}
	return open + "}", stored.ReadRevision(strings.TrimSuffix(text, "}"))
}

func withoutRevisionFields(fields map[string]string) stored.Revision {
	revision := stored.ReadRevision(fields["revision"])
	delete(fields, "revision")
	return revision
}
