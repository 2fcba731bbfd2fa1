package pusher

import (
	"cmp"
	"slices"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/strictjson"
)

// Change is a client's request to set or delete a pusher.
type Change struct {
	Key    Key
	Pusher *Pusher // the pusher to set; nil deletes the pusher of Key
	Others Others  // what happens to other users' pushers of the key
}

// Form is the form of a submitted change.
type Form int

// In the form Document, "append" is an unknown name, and other users keep their
// pushers. The form Specification is that of the Matrix specification.
const (
	Specification Form = iota
	Document
)

// ReadChange reads a submitted change. Kind, app_id and pushkey are required. A kind of
// null deletes the pusher and ignores all other members. Other kinds also require the
// display names, lang and data. Names match exactly.
//
// In the form Specification, other users' pushers are removed unless "append" is true.
// The server's members "created", "device_id" (also as in MSC3881), "claim" and "activated"
// are dropped.
func ReadChange(r *strictjson.Reader, form Form) (Change, error) {
	s := submission{form: form, others: form.others()}
	path := r.Path()
	required := append([]string{"kind"}, keyNames()...)
	err := r.Object(func(name string) error { return s.readMember(r, name) }, required...)
	switch {
	case err != nil:
		return Change{}, err
	case s.deletes:
		return Change{Key: s.pusher.Key}, nil
	case s.wrongShape != nil:
		return Change{}, s.wrongShape
	}
	return Change{s.pusher.Key, &s.pusher, s.others}, requireDetails(s.seen, path)
}

// submission is a change while its members are read.
type submission struct {
	form       Form
	pusher     Pusher
	deletes    bool
	others     Others
	seen       []string // names of members
	wrongShape error    // the first error of a member that a deletion ignores
}

func (s *submission) readMember(r *strictjson.Reader, name string) (err error) {
	s.seen = append(s.seen, name)
	switch name {
	case "kind":
		s.deletes, err = s.pusher.readKind(r)
		return err
	case "app_id", "pushkey":
		return s.pusher.readMember(r, name)
	case createdName, deviceName, deviceNameMSC3881, claimName, activatedName:
		return r.Skip()
	}
	err = s.readDetail(r, name)
	if fault.KindOf(err) == fault.BadJSON {
		s.wrongShape, err = cmp.Or(s.wrongShape, err), nil
	}
	return err
}

// readDetail reads a member that a deletion ignores.
func (s *submission) readDetail(r *strictjson.Reader, name string) (err error) {
	switch {
	case name == "append":
		s.others, err = s.form.readAppend(r)
		return err
	case slices.Contains(enabledNames(), name):
		return s.pusher.readEnabled(r, name)
	}
	return s.pusher.readMember(r, name)
}

func (f Form) others() Others {
	if f == Document {
		return KeepOthers
	}
	return RemoveOthers
}

// readAppend treats null as absent.
func (f Form) readAppend(r *strictjson.Reader) (Others, error) {
	if f == Document {
		return f.others(), r.Skip()
	}
	if null, err := r.Null(); null {
		return f.others(), err
	}
	appends, err := r.Bool()
	if appends {
		return KeepOthers, err
	}
	return RemoveOthers, err
}

func (p *Pusher) readKind(r *strictjson.Reader) (deletes bool, err error) {
	if null, err := r.Null(); null {
		return true, err
	}
	if !r.IsString() {
		return false, r.Mismatch("a string or null")
	}
	kind, err := r.String()
	p.Kind = Kind(kind)
	return false, err
}

// readEnabled treats null as absent.
func (p *Pusher) readEnabled(r *strictjson.Reader, name string) error {
	if null, err := r.Null(); null {
		return err
	}
	if !r.IsBool() {
		return r.Mismatch("a boolean or null")
	}
	return p.readMember(r, name)
}

func requireDetails(seen []string, path string) error {
	if path != "" {
		path += "."
	}
	var missing []string
	for _, name := range detailNames() {
		if !slices.Contains(seen, name) {
			missing = append(missing, path+name)
		}
	}
	if missing == nil {
		return nil
	}
	return strictjson.Missing(missing...)
}
