package pusher

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/mail"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"code.dny.dev/ssrf"
	"golang.org/x/net/idna"

	"github.com/pushfx/pushfx/module/fault"
	"github.com/pushfx/pushfx/module/mxid"
)

// NotifyPath is the required path of an http pusher's URL (Matrix specification, "POST
// /pushers/set", data.url).
const NotifyPath = "/_matrix/push/v1/notify"

// Policy limits the pushers that clients can set, but not listing and deletion. It
// checks only the text of a URL. A host name may resolve to any address, so package
// dialguard checks addresses when it connects.
type Policy struct {
	MaxPushers      int  // pushers of one user; at most 1,000, default 100
	MaxListBytes    int  // bytes of all stored pushers of one user; default 256 KiB
	MaxPushkeyBytes int  // bytes of a pushkey; default 512, the specification's limit
	MaxAppIDChars   int  // code points of an app_id; default 64, the specification's limit
	MaxDataBytes    int  // bytes of data as JSON; default 16 KiB
	MaxURLBytes     int  // bytes of data.url; default 2,048
	AllowHTTP       bool // whether data.url may be a plain http URL; default false

	// AllowedPrefixes are non-public addresses that data.url may name, for example of a
	// gateway in the host's network. With any prefix, data.url may also contain a local
	// name; localhost needs a prefix with a loopback address. Give dialguard.New the
	// same prefixes. Default: none.
	AllowedPrefixes []netip.Prefix

	// Email reports whether the host has confirmed that an email address belongs to the
	// user. Hosts that send mail set it. The module calls it with the pushkey in its canonical
	// form, see [CanonicalAddress], when a pusher of kind email is set or imported, and before a
	// mail; an error fails the request. It must be safe for concurrent use. Default: nil, which refuses such pushers.
	Email func(ctx context.Context, user mxid.UserID, address string) (bool, error)

	// Kinds are further kinds. The module adds those of the host's channels. Default: none.
	Kinds Kinds
}

// Kinds has what the set of a pusher must have, by its kind: an error with [fault.MissingParam] or
// [fault.InvalidParam] refuses a pusher.
type Kinds map[Kind]func(Pusher) error

// EmailAppID is required for pushers of kind email, and forbidden for others (Matrix
// specification, "POST /pushers/set").
const EmailAppID = "m.email"

// ErrAddress refuses a pusher of kind email without a confirmed address.
var ErrAddress = fault.New(fault.InvalidParam, "pushkey must be an email address that is confirmed to be the user's.")

// DefaultPolicy returns the defaults.
func DefaultPolicy() Policy {
	return Policy{MaxPushers: 100, MaxListBytes: 256 << 10, MaxPushkeyBytes: 512,
		MaxAppIDChars: 64, MaxDataBytes: 16 << 10, MaxURLBytes: 2048}
}

// maxPushers limits how many deliveries an event queues for one user.
const maxPushers = 1000

// Validate joins an error for each limit that is out of range and each prefix that is not
// canonical.
func (l Policy) Validate() error {
	var faults []error
	for _, limit := range []struct {
		name  string
		value int
	}{
		{"MaxPushers", l.MaxPushers},
		{"MaxListBytes", l.MaxListBytes},
		{"MaxPushkeyBytes", l.MaxPushkeyBytes},
		{"MaxAppIDChars", l.MaxAppIDChars},
		{"MaxDataBytes", l.MaxDataBytes},
		{"MaxURLBytes", l.MaxURLBytes},
	} {
		if limit.value < 1 {
			faults = append(faults, fmt.Errorf("%s is %d, want at least 1", limit.name, limit.value))
		}
	}
	if l.MaxPushers > maxPushers {
		faults = append(faults, fmt.Errorf("MaxPushers is %d, want at most %d", l.MaxPushers, maxPushers))
	}
	for i, prefix := range l.AllowedPrefixes {
		if err := checkPrefix(prefix); err != nil {
			faults = append(faults, fmt.Errorf("AllowedPrefixes[%d] is %v, %w", i, prefix, err))
		}
	}
	return errors.Join(faults...)
}

// checkPrefix refuses invalid prefixes. It also refuses IPv4 prefixes written as IPv6,
// which never match, and prefixes with bits after their length, which may be meant as
// single addresses.
func checkPrefix(p netip.Prefix) error {
	switch {
	case !p.IsValid():
		return errors.New("want an IPv4 or IPv6 prefix")
	case p.Addr().Is4In6():
		return errors.New("want an IPv4 prefix")
	case p != p.Masked():
		return fmt.Errorf("want %v", p.Masked())
	}
	return nil
}

// Check refuses a pusher outside the policy: a value over a limit, an empty key, an
// unknown kind, and a wrong app_id or URL with [fault.InvalidParam], a missing URL of
// an http pusher with [fault.MissingParam]. It does not call Email.
func (l Policy) Check(p Pusher) error {
	switch {
	case p.AppID == "":
		return fault.New(fault.InvalidParam, "app_id must not be empty.")
	case p.Pushkey == "":
		return fault.New(fault.InvalidParam, "pushkey must not be empty.")
	case len(p.Pushkey) > l.MaxPushkeyBytes:
		return fault.New(fault.InvalidParam, fmt.Sprintf("pushkey longer than %d bytes.", l.MaxPushkeyBytes))
	case utf8.RuneCountInString(p.AppID) > l.MaxAppIDChars:
		return fault.New(fault.InvalidParam, fmt.Sprintf("app_id longer than %d characters.", l.MaxAppIDChars))
	case len(p.Data) > l.MaxDataBytes:
		return fault.New(fault.InvalidParam, fmt.Sprintf("data longer than %d bytes.", l.MaxDataBytes))
	}
	switch {
	case p.Kind == Email && l.Email == nil:
		return fault.New(fault.InvalidParam, "kind must be 'http' or null: this server sends no email.")
	case p.AppID != EmailAppID && l.Kinds[p.Kind] != nil:
		return l.Kinds[p.Kind](p)
	case p.Kind != Email && p.Kind != HTTP:
		return fault.New(fault.InvalidParam, "kind must be "+l.kinds()+" or null.")
	case p.Kind == Email && p.AppID != EmailAppID:
		return fault.New(fault.InvalidParam, "app_id of an email pusher must be '"+EmailAppID+"'.")
	case p.Kind == HTTP && p.AppID == EmailAppID: // might remove another user's email pusher
		return fault.New(fault.InvalidParam, "app_id '"+EmailAppID+"' is for email pushers.")
	case p.Kind == Email:
		return checkMailAddress(p.Pushkey)
	}
	return l.checkURL(p.Data, NotifyPath)
}

// CanonicalAddress returns the form in which pushers have an email address: its domain is in small
// letters (RFC 5321, 2.4), and an internationalized one is in A-labels (RFC 5890, 2.3.2.1), such as
// xn--bcher-kva.example. The part before the @ is not changed. A host may compare it with the
// canonical form of its users' addresses.
func CanonicalAddress(address string) string {
	at := strings.LastIndexByte(address, '@') + 1
	if at == 0 {
		return address
	}
	name, valid := asciiName(address[at:])
	if !valid { // for example an IP address in brackets
		name = strings.ToLower(address[at:])
	}
	return address[:at] + name
}

// checkMailAddress refuses addresses that no mail can be sent to, such as one with a name, with
// two dots in a row, or with a domain that has no A-labels.
func checkMailAddress(address string) error {
	address = CanonicalAddress(address)
	read, err := mail.ParseAddress(address)
	if err != nil || read.Address != address || !isASCII(address[strings.LastIndexByte(address, '@'):]) {
		return fault.New(fault.InvalidParam, "pushkey of an email pusher must be an email address.")
	}
	return nil
}

func isASCII(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r > unicode.MaxASCII })
}

func (l Policy) kinds() string {
	names := []string{"'" + string(HTTP) + "'"}
	if l.Email != nil {
		names = append(names, "'"+string(Email)+"'")
	}
	for _, kind := range slices.Sorted(maps.Keys(l.Kinds)) {
		names = append(names, "'"+string(kind)+"'")
	}
	return strings.Join(names, ", ")
}

// CheckGrowth refuses a change that makes a list larger than a limit: in number with
// [fault.InvalidParam], in bytes with [fault.TooLarge]. A list over a limit may still
// change or shrink.
func (l Policy) CheckGrowth(before, after Size) error {
	if after.Pushers > before.Pushers && after.Pushers > l.MaxPushers {
		return fault.New(fault.InvalidParam, fmt.Sprintf("A user has at most %d pushers.", l.MaxPushers))
	}
	if after.Bytes > l.MaxListBytes && after.Bytes > before.Bytes {
		return fault.New(fault.TooLarge, fmt.Sprintf("Pushers larger than %d bytes.", l.MaxListBytes))
	}
	return nil
}

// checkURL checks data.url, whose path is any if path is empty.
func (l Policy) checkURL(data, path string) error {
	text, err := readText(data, "url")
	if err != nil {
		return err
	}
	if len(text) > l.MaxURLBytes {
		return fault.New(fault.InvalidParam, fmt.Sprintf("data.url longer than %d bytes.", l.MaxURLBytes))
	}
	u, err := url.Parse(text)
	if err != nil || strings.Contains(text, "#") || !l.allowsForm(u, path) {
		if path != "" {
			path = " with the path " + path
		}
		return fault.New(fault.InvalidParam, "data.url must be an absolute "+l.schemes()+" URL"+path+", without user info or fragment.")
	}
	return l.checkHost(u)
}

// allowsForm checks the scheme, path, user info and port of a URL. The caller checks
// the fragment in the text, because url.Parse loses the empty fragment of "...#".
func (l Policy) allowsForm(u *url.URL, path string) bool {
	hasScheme := u.Scheme == "https" || u.Scheme == "http" && l.AllowHTTP
	hasPath := path == "" || u.Path == path && u.RawPath == ""
	return hasScheme && hasPath && u.User == nil && u.Hostname() != "" && validPort(u.Port())
}

func validPort(port string) bool {
	n, err := strconv.ParseUint(port, 10, 16)
	return port == "" || err == nil && n > 0
}

// The reasons for refusing a host.
const (
	badName    = "data.url must have a host with a valid domain name."
	oddAddress = "data.url must have an IP address in its usual form."
	notPublic  = "data.url must not have an IP address that is not public."
	localName  = "data.url must not have a host that is local by definition."
)

// checkHost refuses invalid names, non-public addresses and local names with
// [fault.InvalidParam]. Other names, even names without a dot, may resolve to any
// address; package dialguard checks that address.
func (l Policy) checkHost(u *url.URL) error {
	host := u.Hostname()
	name, valid := asciiName(host)
	switch {
	case strings.HasPrefix(u.Host, "["):
		return l.checkAddress(host)
	case !valid:
		return fault.New(fault.InvalidParam, badName)
	case isNumber(topLabel(name)):
		return l.checkAddress(host)
	case !l.allowsName(name):
		return fault.New(fault.InvalidParam, localName)
	}
	return nil
}

// checkAddress accepts a public address in the form of netip, or in any form of IPv6.
// Resolvers would also accept 127.1, 2130706433, 0177.0.0.1 and 0x7f.1.
func (l Policy) checkAddress(text string) error {
	addr, err := netip.ParseAddr(text)
	switch {
	case err != nil:
		return fault.New(fault.InvalidParam, oddAddress)
	case !l.allows(addr) && public.SafeAddr(addr) != nil:
		return fault.New(fault.InvalidParam, notPublic)
	}
	return nil
}

// public checks addresses against IANA's special-purpose registries, without I/O.
// Dialguard uses the same package, so both agree.
var public = ssrf.New(ssrf.WithAnyPort())

// allows reports whether AllowedPrefixes contain an address. IPv4 mapped to IPv6 counts
// as IPv4. An address with a zone is never allowed.
func (l Policy) allows(addr netip.Addr) bool {
	return slices.ContainsFunc(l.AllowedPrefixes, func(p netip.Prefix) bool { return p.Contains(addr.Unmap()) })
}

// allowsName refuses local names unless AllowedPrefixes have an address for them: names
// of loopback (RFC 6761, section 6.3), multicast DNS (RFC 6762), private networks
// (.internal, ICANN resolution 2024.07.29.06) and homes (RFC 8375).
func (l Policy) allowsName(name string) bool {
	switch top := topLabel(name); {
	case top == "localhost":
		return l.allows(netip.AddrFrom4([4]byte{127, 0, 0, 1})) || l.allows(netip.IPv6Loopback())
	case top == "local", top == "internal", strings.HasSuffix("."+name, ".home.arpa"):
		return len(l.AllowedPrefixes) > 0
	}
	return true
}

func topLabel(name string) string { return name[strings.LastIndexByte(name, '.')+1:] }

// isNumber reports whether some resolvers read a host with this last label as an IPv4
// address (WHATWG URL Standard, "ends in a number checker").
func isNumber(label string) bool {
	digits, cutset := label, "0123456789"
	if hex, found := strings.CutPrefix(label, "0x"); found {
		digits, cutset = hex, "0123456789abcdef"
	}
	return strings.Trim(digits, cutset) == ""
}

// hostNames maps names as browsers do: with UTS 46, which is IDNA2008 with symbols and
// a mapping of case and width. It allows hyphens and underscores anywhere.
var hostNames = idna.New(
	idna.MapForLookup(), idna.BidiRule(), idna.Transitional(false), idna.StrictDomainName(false), idna.CheckHyphens(false),
)

const maxName = 253

// asciiName returns a host's name for DNS, without a final dot. It refuses names with
// invisible characters, empty labels, labels over 63 bytes, or more than 253 bytes (RFC
// 1035). It does not map longer hosts than such a name can have, since the time to encode
// a label grows with its square. It maps the name twice, because the first mapping can produce right-to-left
// text, which the second one checks.
func asciiName(host string) (name string, valid bool) {
	if len(host) > maxName*utf8.UTFMax || strings.ContainsFunc(host, isInvisible) {
		return "", false
	}
	once, err := hostNames.ToASCII(host)
	_, again := hostNames.ToASCII(once)
	name = strings.TrimSuffix(once, ".")
	wellFormed := len(name) <= maxName && !slices.ContainsFunc(strings.Split(name, "."), isBadLabel)
	return name, err == nil && again == nil && wellFormed
}

// isBadLabel accepts underscores as letters, like browsers and resolvers.
func isBadLabel(label string) bool {
	return label == "" || len(label) > 63 || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != ""
}

// isInvisible reports whether a character can disguise a name: it shows nothing or
// changes the direction of text. The two joiners are exceptions: some scripts need
// them, and IDNA has rules for them.
func isInvisible(r rune) bool {
	const zwnj, zwj = '\u200c', '\u200d'
	return r != zwnj && r != zwj &&
		unicode.In(r, unicode.Cf, unicode.Variation_Selector, unicode.Other_Default_Ignorable_Code_Point)
}

func (l Policy) schemes() string {
	if l.AllowHTTP {
		return "https or http"
	}
	return "https"
}
