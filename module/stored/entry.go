package stored

import (
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
func ReadEntry(text string) (Entry, error) {
	e, isEntry := walkEntry(text)
	if isEntry {
		return e, nil
	}
	if form, found := formOfEntry(text); found && form != entryForm {
		return Entry{}, otherVersion("entry of a pushkey", form)
	}
	return Entry{}, pusher.Unreadable(errors.New("not an entry of a pushkey"))
}

func walkEntry(text string) (e Entry, isEntry bool) {
	w := strictjson.Walk(text)
	if !strictjson.Valid(text) || w.Next() != '{' {
		return e, false
	}
	e.Last, e.Taken = noNumber, noNumber
	form, hasBy, hasUsers, address := "", false, false, "false"
	for name := range w.Object() {
		switch name {
		case formMember:
			form = w.Skip()
		case lastMember:
			e.Last = readNumber(w.Skip())
		case takenMember:
			e.Taken = readNumber(w.Skip())
		case byMember:
			e.By, hasBy = readUser(&w)
		case usersMember:
			e.Users, hasUsers = readUsers(&w)
		case addressMember:
			address = w.Skip()
		case revisionMember:
			e.Revision = readRevision(strictjson.Walk(w.Skip()))
		default:
			w.Skip()
		}
	}
	e.Address = address == "true"
	return e, form == entryForm && e.Taken != noNumber && e.Taken <= e.Last && hasBy && hasUsers && (e.Address || address == "false")
}

func readUser(w *strictjson.Walker) (user mxid.UserID, isString bool) {
	if w.Next() != '"' {
		w.Skip()
		return "", false
	}
	return mxid.UserID(w.String()), true
}

func readUsers(w *strictjson.Walker) (users []mxid.UserID, areStrings bool) {
	if w.Next() != '[' {
		w.Skip()
		return nil, false
	}
	areStrings = true
	for range w.Array() {
		user, isString := readUser(w)
		users, areStrings = append(users, user), areStrings && isString
	}
	return users, areStrings
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
