package webpush

import (
	"slices"
	"strconv"

	"github.com/pushfx/pushfx/module"
	"github.com/pushfx/pushfx/module/delivery/channel"
	"github.com/pushfx/pushfx/module/delivery/content"
	"github.com/pushfx/pushfx/module/strictjson"
)

// maxBody is the size of a body, before it is sealed, above which parts are left out.
const maxBody = 3000

// body returns what is sealed: the members of a notification to a push gateway and the counts, and
// below them those of default_payload. A large body lacks members of the content, then the content,
// then all but the ids.
func (s *subscriber) body(n channel.Notification) []byte {
	_, members, shown := content.Split(n.Text)
	if s.IsIDOnly || len(s.payload) > maxBody {
		members = ""
	}
	shown = "{" + shown + "}"
	if membership := content.MemberOf(shown, "membership"); membership != "" {
		members += `,"membership":` + membership
	}
	rest, large := content.MemberOf(shown, "content"), []string{"formatted_body", "body", "ciphertext"}
	for members != "" {
		if body := s.appendBody(n, members, rest, s.payload); len(body) <= maxBody {
			return body
		}
		switch {
		case rest == "":
			members = ""
		case len(large) == 0:
			rest = ""
		default:
			rest = string(append(appendOthers([]byte{'{'}, rest, large[:1]), '}'))
			large = large[1:]
		}
	}
	if body := s.appendBody(n, "", "", s.payload); len(body) <= maxBody {
		return body
	}
	return s.appendBody(n, "", "", "")
}

func (s *subscriber) appendBody(n channel.Notification, members, rest, payload string) []byte {
	dst := append(make([]byte, 0, len(members)+len(rest)+len(payload)+512), '{')
	switch {
	case members != "":
		dst = append(dst, members...)
	case n.Meta.Event != "":
		dst = content.AppendPriority(content.AppendIDs(dst, n.Meta.Event, n.Meta.Room), n.Priority == module.HighPriority)
	default:
		dst = content.AppendPriority(dst, false)
	}
	if rest != "" {
		dst = append(strictjson.AppendMember(dst, "content"), rest...)
	}
	if n.Counts != nil {
		dst = strconv.AppendInt(strictjson.AppendMember(dst, "unread"), int64(n.Counts.Unread), 10)
		if n.Counts.MissedCalls > 0 {
			dst = strconv.AppendInt(strictjson.AppendMember(dst, "missed_calls"), int64(n.Counts.MissedCalls), 10)
		}
	}
	if payload != "" {
		var names []string
		w := strictjson.Walk(string(dst) + "}")
		w.Next()
		for name := range w.Object() {
			names = append(names, name)
		}
		dst = appendOthers(dst, payload, names)
	}
	return append(dst, '}')
}

// appendOthers appends the members of an object but some. Other JSON has none.
func appendOthers(dst []byte, object string, but []string) []byte {
	w := strictjson.Walk(object)
	if w.Next() != '{' {
		return dst
	}
	for name := range w.Object() {
		if value := w.Skip(); !slices.Contains(but, name) {
			dst = append(strictjson.AppendMember(dst, name), value...)
		}
	}
	return dst
}
