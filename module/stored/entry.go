package stored

import (
	"errors"
	"slices"
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
	takenMember    = "taken"
	holdersMember  = "holders"
	losersMember   = "losers"
	revisionMember = "revision" // also of an event
)

// ReadEntry reads the form of [Entry.AppendJSON], and ignores other members. Errors:
// [pusher.Unreadable], and [fault.OtherVersionError] for an entry of another form.
func ReadEntry(text string) (e Entry, err error) {
	r := strictjson.NewReader(text)
	err = r.Object(func(name string) (err error) {
		switch name {
		case takenMember:
			if e.Taken, err = r.Integer(); err == nil && e.Taken < 0 {
				err = errors.New("taken is negative")
			}
		case holdersMember:
			e.Holders, err = readHolders(r)
		case losersMember:
			e.Losers, err = readHolders(r)
		case revisionMember:
			var revision string
			revision, err = r.Value()
			e.Revision = ReadRevision(revision)
		default:
			err = r.Skip()
		}
		return err
	}, takenMember, holdersMember, losersMember)
	if err != nil || e.Revision.Version == 0 {
		if form, found := formOfValue(text); found {
			return Entry{}, otherVersion("entry of a pushkey", form)
		}
	}
	if err == nil && slices.ContainsFunc(e.Losers, func(h pusher.Holder) bool { return e.Number(h.User) != 0 }) {
		err = errors.New("a user is a holder and a loser")
	}
	if err != nil {
		return Entry{}, pusher.Unreadable(err)
	}
	return e, nil
}

func readHolders(r *strictjson.Reader) (all []pusher.Holder, err error) {
	err = r.Object(func(user string) error {
		number, err := r.Integer()
		if err == nil && number < 1 {
			err = errors.New("the number of a user is not positive")
		}
		all = append(all, pusher.Holder{User: mxid.UserID(user), Number: number})
		return err
	})
	return all, err
}

// AppendJSON appends {"taken":NUMBER,"holders":{"@user:server":NUMBER},"losers":{},"revision":{...}}.
func (e Entry) AppendJSON(dst []byte) []byte {
	dst = strconv.AppendInt(strictjson.AppendMember(append(dst, '{'), takenMember), e.Taken, 10)
	dst = appendHolders(strictjson.AppendMember(dst, holdersMember), e.Holders)
	dst = appendHolders(strictjson.AppendMember(dst, losersMember), e.Losers)
	dst = e.Revision.AppendJSON(strictjson.AppendMember(dst, revisionMember))
	return append(dst, '}')
}

func appendHolders(dst []byte, all []pusher.Holder) []byte {
	dst = append(dst, '{')
	for _, h := range all {
		dst = strconv.AppendInt(strictjson.AppendMember(dst, string(h.User)), h.Number, 10)
	}
	return append(dst, '}')
}
