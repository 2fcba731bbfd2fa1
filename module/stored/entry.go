package stored

import (
	"cmp"
	"errors"
	"strconv"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/strictjson"
)

// Entry decides about one pushkey. It is stored at [Keys.Pushkey].
type Entry struct {
	pusher.Entry
	Revision Revision
}

const (
	lastMember     = "last"
	takenMember    = "taken"
	byMember       = "by"
	usersMember    = "users"
	addressMember  = "address"
	revisionMember = "revision" // also of an event
)

// entryForm is the form of an entry. Form 1 has "holders" and does not name its form.
const entryForm = "2"

// ReadEntry reads the form of [Entry.AppendJSON], and ignores other members. Errors:
// [pusher.Unreadable], and [fault.OtherVersionError] for an entry of another form.
func ReadEntry(text string) (e Entry, err error) {
	r, form := strictjson.NewReader(text), ""
	err = r.Object(func(name string) (err error) {
		switch name {
		case formMember:
			form, err = r.Value()
		case lastMember:
			e.Last, err = readNatural(r)
		case takenMember:
			e.Taken, err = readNatural(r)
		case byMember:
			e.By, err = readUser(r)
		case usersMember:
			err = r.Array(func() error {
				user, err := readUser(r)
				e.Users = append(e.Users, user)
				return err
			})
		case addressMember:
			e.Address, err = r.Bool()
		case revisionMember:
			var revision string
			revision, err = r.Value()
			e.Revision = ReadRevision(revision)
		default:
			err = r.Skip()
		}
		return err
	}, lastMember, takenMember, byMember, usersMember)
	switch {
	case form != entryForm:
		if other, found := formOfEntry(text); found && other != entryForm {
			return Entry{}, otherVersion("entry of a pushkey", other)
		}
		err = cmp.Or(err, errors.New("an entry without a form"))
	case err == nil && e.Taken > e.Last:
		err = errors.New("taken is above last")
	}
	if err != nil {
		return Entry{}, pusher.Unreadable(err)
	}
	return e, nil
}

func readNatural(r *strictjson.Reader) (int64, error) {
	n, err := r.Integer()
	if err == nil && n < 0 {
		err = errors.New("a number is negative")
	}
	return n, err
}

func readUser(r *strictjson.Reader) (mxid.UserID, error) {
	user, err := r.String()
	return mxid.UserID(user), err
}

// AppendJSON appends {"form":2,"last":NUMBER,"taken":NUMBER,"by":"@user:server","users":["@user:server"],"revision":{...}},
// with "address":true for an email address.
func (e Entry) AppendJSON(dst []byte) []byte {
	dst = append(strictjson.AppendMember(append(dst, '{'), formMember), entryForm...)
	dst = strconv.AppendInt(strictjson.AppendMember(dst, lastMember), e.Last, 10)
	dst = strconv.AppendInt(strictjson.AppendMember(dst, takenMember), e.Taken, 10)
	dst = strictjson.AppendString(strictjson.AppendMember(dst, byMember), string(e.By))
	dst = append(strictjson.AppendMember(dst, usersMember), '[')
	for i, user := range e.Users {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = strictjson.AppendString(dst, string(user))
	}
	dst = append(dst, ']')
	if e.Address {
		dst = append(strictjson.AppendMember(dst, addressMember), "true"...)
	}
	dst = e.Revision.AppendJSON(strictjson.AppendMember(dst, revisionMember))
	return append(dst, '}')
}
