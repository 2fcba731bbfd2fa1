package pusher

import (
	"cmp"
	"slices"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/strictjson"
)

// Change is what a client asks of its pushers: to set one, or to delete one.
type Change struct {
	Key    Key
	Pusher *Pusher // what to set; nil deletes the pusher of Key
	Others Others  // of the same key, when a pusher is set
}

// Form is how a change is submitted.
type Form int

// The forms. They differ in what "append" is: with Document it is one of the
// names that the service does not handle, and nobody else's pusher is touched.
const (
	Specification Form = iota
	Document
)

// ReadChange reads a submitted change. Kind, app_id and pushkey are always
// required; a kind of null, and nothing else, deletes, whatever the other
// members are; to set a pusher needs the display names, lang and data as well.
// Names match exactly.
//
// In the specification's form "append" says what becomes of other users'
// pushers; without it they are removed. Neither it is kept, nor are the names
// "created", "device_id" (also that of MSC3881) and "claim", which belong to the server.
func ReadChange(r *strictjson.Reader, form Form) (Change, error) {
	var p Pusher
	var deletes bool
	others := form.others()
	var seen []string
	var wrongShape error // of a member that only a pusher to set needs
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

// others is what becomes of them where "append" is not given.
func (f Form) others() Others {
	if f == Document {
		return KeepOthers
	}
	return RemoveOthers
}

// readAppend reads the member "append": null is as good as none.
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

// readEnabled reads one of [enabledNames], which is kept as it is: null is as good
// as none.
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
