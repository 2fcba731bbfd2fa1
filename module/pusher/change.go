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

// In the form Document, "append" is an unknown name, and other users' pushers are kept.
const (
	Specification Form = iota
	Document
)

// ReadChange reads a submitted change. Kind, app_id and pushkey are required. Only a kind
// of null deletes, and then other members are ignored; other kinds also require the
// display names, lang and data. Names match exactly.
//
// In the form Specification, other users' pushers are removed unless "append" is true.
// The server's members "created", "device_id" (also as in MSC3881) and "claim" are
// dropped.
func ReadChange(r *strictjson.Reader, form Form) (Change, error) {
	var p Pusher
	var deletes bool
	others := form.others()
	var seen []string
	var wrongShape error // the error of a member that a deletion ignores
	path := r.Path()
	err := r.Object(func(name string) (err error) {
		seen = append(seen, name)
		switch name {
		case "kind":
			deletes, err = p.readKind(r)
		case "app_id", "pushkey":
			err = p.readMember(r, name)
		case createdName, deviceName, deviceNameMSC3881, claimName:
			err = r.Skip()
		default:
			switch {
			case name == "append":
				others, err = form.readAppend(r)
			case slices.Contains(enabledNames(), name):
				err = p.readEnabled(r, name)
			default:
				err = p.readMember(r, name)
			}
			if fault.KindOf(err) == fault.BadJSON {
				wrongShape, err = cmp.Or(wrongShape, err), nil
			}
		}
		return err
	}, append([]string{"kind"}, keyNames()...)...)
	switch {
	case err != nil:
		return Change{}, err
	case deletes:
		return Change{Key: p.Key}, nil
	case wrongShape != nil:
		return Change{}, wrongShape
	}
	return Change{p.Key, &p, others}, requireDetails(seen, path)
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
