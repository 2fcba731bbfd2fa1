package pusher

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/strictjson"
)

// NotifyPath is the path that the URL of an http pusher must have
// (Matrix specification, "POST /pushers/set", data.url).
const NotifyPath = "/_matrix/push/v1/notify"

// Policy says which pushers may be set. It is checked when a pusher is set,
// never when pushers are listed or deleted.
type Policy struct {
	MaxPushers      int  // pushers of one user; default 100
	MaxPushkeyBytes int  // bytes of a pushkey; default 512, the specification's limit
	MaxAppIDChars   int  // code points of an app_id; default 64, the specification's limit
	MaxDataBytes    int  // bytes of data as JSON; default 16 KiB
	MaxURLBytes     int  // bytes of data.url; default 2,048
	MaxSharers      int  // users with a pusher of one key ("append"); default 100
	AllowHTTP       bool // whether data.url may be a plain http URL; default false
}

// DefaultPolicy returns the defaults.
func DefaultPolicy() Policy {
	return Policy{MaxPushers: 100, MaxPushkeyBytes: 512, MaxAppIDChars: 64, MaxDataBytes: 16 << 10, MaxURLBytes: 2048, MaxSharers: 100}
}

// Validate joins an error for each limit that is not positive.
func (l Policy) Validate() error {
	var faults []error
	for _, limit := range []struct {
		name  string
		value int
	}{
		{"MaxPushers", l.MaxPushers},
		{"MaxPushkeyBytes", l.MaxPushkeyBytes},
		{"MaxAppIDChars", l.MaxAppIDChars},
		{"MaxDataBytes", l.MaxDataBytes},
		{"MaxURLBytes", l.MaxURLBytes},
		{"MaxSharers", l.MaxSharers},
	} {
		if limit.value < 1 {
			faults = append(faults, fmt.Errorf("%s is %d, want at least 1", limit.name, limit.value))
		}
	}
	return errors.Join(faults...)
}

// Check refuses a pusher that the policy does not allow: what is over a size
// with [fault.TooLarge], an empty key, an unknown kind or an unfit URL with
// [fault.InvalidParam], an http pusher without a URL with [fault.MissingParam].
func (l Policy) Check(p Pusher) error {
	switch {
	case p.AppID == "":
		return fault.New(fault.InvalidParam, "app_id must not be empty.")
	case p.Pushkey == "":
		return fault.New(fault.InvalidParam, "pushkey must not be empty.")
	case len(p.Pushkey) > l.MaxPushkeyBytes:
		return fault.New(fault.TooLarge, fmt.Sprintf("pushkey longer than %d bytes.", l.MaxPushkeyBytes))
	case utf8.RuneCountInString(p.AppID) > l.MaxAppIDChars:
		return fault.New(fault.TooLarge, fmt.Sprintf("app_id longer than %d characters.", l.MaxAppIDChars))
	case len(p.Data) > l.MaxDataBytes:
		return fault.New(fault.TooLarge, fmt.Sprintf("data longer than %d bytes.", l.MaxDataBytes))
	}
	switch p.Kind {
	case HTTP:
		return l.checkURL(p.Data)
	case Email:
		return nil
	}
	return fault.New(fault.InvalidParam, "kind must be 'http', 'email' or null.")
}

// CheckCount refuses, with [fault.InvalidParam], a list that has grown from
// before pushers to more than the limit.
func (l Policy) CheckCount(before int, list *List) error {
	if n := list.Len(); n > before && n > l.MaxPushers {
		return fault.New(fault.InvalidParam, fmt.Sprintf("A user has at most %d pushers.", l.MaxPushers))
	}
	return nil
}

// checkURL checks the url within an http pusher's data.
func (l Policy) checkURL(data string) error {
	text, err := readURL(data)
	if err != nil {
		return err
	}
	if len(text) > l.MaxURLBytes {
		return fault.New(fault.TooLarge, fmt.Sprintf("data.url longer than %d bytes.", l.MaxURLBytes))
	}
	u, err := url.Parse(text)
	allowed := err == nil && (u.Scheme == "https" || u.Scheme == "http" && l.AllowHTTP)
	if !allowed || u.Hostname() == "" || !validPort(u.Port()) || u.User != nil || u.Path != NotifyPath || u.RawPath != "" || strings.Contains(text, "#") {
		return fault.New(fault.InvalidParam, "data.url must be an absolute "+l.schemes()+" URL with the path "+NotifyPath+
			", without user info or fragment.")
	}
	return nil
}

// validPort reports whether a URL's port can be one. None is fine.
func validPort(port string) bool {
	_, err := strconv.ParseUint(port, 10, 16)
	return port == "" || err == nil
}

func (l Policy) schemes() string {
	if l.AllowHTTP {
		return "https or http"
	}
	return "https"
}

func readURL(data string) (text string, err error) {
	r := strictjson.NewReader(data)
	found := false
	err = r.Object(func(name string) error {
		if name != "url" {
			return r.Skip()
		}
		if !r.IsString() {
			return strictjson.WrongShape("data.url", "a string")
		}
		found = true
		text, err = r.String()
		return err
	})
	if err == nil && !found {
		err = strictjson.Missing("data.url")
	}
	return text, err
}
