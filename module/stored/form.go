package stored

import (
	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/strictjson"
)

const formMember = "form" // of a revision, and of an entry

// formOfRevision returns the form that a revision names. Found is false for form 1.
func formOfRevision(text string) (form string, found bool) { return member(text, formMember) }

// formOfValue returns the form of an event of push rules. Found is false for form 1.
func formOfValue(text string) (form string, found bool) {
	revision, _ := member(text, revisionMember)
	return formOfRevision(revision)
}

// formOfEntry returns the form of a pushkey's entry. Found is false for another text.
func formOfEntry(text string) (form string, found bool) {
	if form, found = member(text, formMember); !found {
		_, found = member(text, "holders")
		form = "1"
	}
	return form, found
}

// CheckForm returns a [fault.OtherVersionError] for a user's hash of another form.
func CheckForm(fields map[string]string) error {
	if form, found := formOfRevision(fields[RevisionField]); found {
		return otherVersion("pushers", form)
	}
	return nil
}

// member returns the text of an object's member.
func member(text, name string) (value string, found bool) {
	w := strictjson.Walk(text)
	if !strictjson.Valid(text) || w.Next() != '{' {
		return "", false
	}
	for member := range w.Object() {
		if skipped := w.Skip(); member == name {
			value, found = skipped, true
		}
	}
	return value, found
}

// otherVersion returns the error of a value of another form.
func otherVersion(data, form string) *fault.Error {
	return fault.Wrap(fault.Database, "Another version of the server stored the data.",
		&fault.OtherVersionError{Data: data, Form: shortened(form)})
}

// shortened bounds a text for logs.
func shortened(text string) string { return text[:min(len(text), 40)] }
