package stored

import (
	"errors"
	"strconv"

	"github.com/pushfx/pushfx/module/mxid"
	"github.com/pushfx/pushfx/module/pusher"
	"github.com/pushfx/pushfx/module/strictjson"
)

// Entry has the claims to one pushkey. It is stored at [Keys.Claims].
type Entry struct {
	Claims   pusher.Claims
	Revision Revision
}

const (
	claimsMember   = "claims"
	revisionMember = "revision" // also of an event
)

// ReadEntry reads the form of [Entry.AppendJSON], and ignores other members. Errors:
// [pusher.Unreadable], and [fault.OtherVersionError] for claims of another form.
func ReadEntry(text string) (e Entry, err error) {
	var owners []pusher.Owner
	r := strictjson.NewReader(text)
	err = r.Object(func(name string) error {
		switch name {
		case claimsMember:
			return r.Object(func(number string) error {
				owner, err := readOwner(r, number)
				owners = append(owners, owner)
				return err
			})
		case revisionMember:
			revision, err := r.Value()
			e.Revision = ReadRevision(revision)
			return err
		}
		return r.Skip()
	}, claimsMember)
	if err != nil || e.Revision.Version == 0 {
		if form, found := formOfValue(text); found {
			return Entry{}, otherVersion("claims to a pushkey", form)
		}
	}
	if err != nil {
		return Entry{}, pusher.Unreadable(err)
	}
	e.Claims = pusher.NewClaims(owners...)
	return e, nil
}

func readOwner(r *strictjson.Reader, number string) (pusher.Owner, error) {
	claim, err := strconv.ParseInt(number, 10, 64)
	if err != nil || claim < 1 || strconv.FormatInt(claim, 10) != number {
		return pusher.Owner{}, errors.New("the name of a claim is not a number")
	}
	user, err := r.String()
	return pusher.Owner{User: mxid.UserID(user), Claim: claim}, err
}

// AppendJSON appends {"claims":{"NUMBER":"@user:server"},"revision":{...}}.
func (e Entry) AppendJSON(dst []byte) []byte {
	dst = append(strictjson.AppendMember(append(dst, '{'), claimsMember), '{')
	for _, owner := range e.Claims.Owners() {
		dst = strictjson.AppendString(strictjson.AppendMember(dst, strconv.FormatInt(owner.Claim, 10)), string(owner.User))
	}
	dst = e.Revision.AppendJSON(strictjson.AppendMember(append(dst, '}'), revisionMember))
	return append(dst, '}')
}
