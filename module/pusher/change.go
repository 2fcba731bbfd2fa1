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
}

// ReadChange reads a submitted change. Kind, app_id and pushkey are always
// required; a kind of null, and nothing else, deletes, whatever the other
// members are; to set a pusher needs the display names, lang and data as well.
// Names match exactly.
//
// The names "append", "created" and "device_id" belong to the server and are
// not kept.
func ReadChange(r *strictjson.Reader) (Change, error) {
	var p Pusher
	var deletes bool
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
		case "append", createdName, deviceName:
			err = r.Skip()
		default:
			err = p.readMember(r, name)
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
	return Change{Key: p.Key, Pusher: &p}, requireDetails(seen, path)
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
