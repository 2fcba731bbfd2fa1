package smtp

import (
	"regexp"
	"slices"
	"strings"

	"github.com/pushfx/pushfx/module"
)

// answer is an answer of a server that does not accept a mail.
type answer struct {
	step string // see stepError
	code int
	text string // may begin with a code of RFC 3463

	// acceptsOthers says that the server has accepted a mail of this host lately.
	acceptsOthers bool
}

// enhancedCode finds a code of RFC 3463, at the start or, from qmail, in brackets.
var enhancedCode = regexp.MustCompile(`^([245])\.(\d{1,3}\.\d{1,3})\b|\(#([245])\.(\d{1,3}\.\d{1,3})\)`)

// enhanced returns the code of RFC 3463, and its part after the class; both are empty if there is none.
func (a answer) enhanced() (code, detail string) {
	found := enhancedCode.FindStringSubmatch(a.text)
	if found == nil {
		return "", ""
	}
	class, detail := found[1]+found[3], found[2]+found[4]
	return class + "." + detail, detail
}

// namesHost finds words about the host, for servers without codes of RFC 3463, or with 5.1.0 for
// all addresses. A word too many costs a dead address that is tried again.
var namesHost = regexp.MustCompile(
	`(?i)relay|rcpthosts|sender|h[ae]lo|ehlo|authenti|policy|prohibit|denied|permit|spam|spf|dkim|dmarc|block|black|list|reputation|reverse|client`,
).MatchString

// namesHostNow is namesHost for answers that mean "later", as servers that greylist give them.
var namesHostNow = regexp.MustCompile(`(?i)relay|sender|h[ae]lo|ehlo|authenti|spf|dkim|dmarc|black|blocklist|reputation|reverse|client host`).MatchString

// words returns the text without addresses: users choose theirs.
func (a answer) words() string { return anAddress.ReplaceAllString(a.text, "") }

var anAddress = regexp.MustCompile(`[^\s<>]+@[^\s<>]+`)

// outcome returns what an answer is about (RFC 5321, section 4.2; RFC 3463, section 3).
func (a answer) outcome() module.Outcome {
	_, detail := a.enhanced()
	if a.code < 500 {
		return a.later(detail)
	}
	switch isHere := a.step == "RCPT" || a.step == "DATA"; {
	case strings.HasPrefix(detail, "6."), detail == "2.3", detail == "3.4", a.code == 552 && detail == "" && a.step != "RCPT":
		return module.Unfit // its content, or its size
	case !isHere, detail == "1.7", detail == "1.8", detail == "7.25", detail == "7.26", a.step == "RCPT" && strings.HasPrefix(detail, "7."):
		return module.Blocked // the settings of the host, its sender, security and policy
	case slices.Contains([]string{"1.1", "1.2", "1.3", "1.6", "1.10", "2.1", "2.4"}, detail): // OpenSMTPD has 5.2.4 for unknown users
		return module.Gone
	case detail == "2.2", a.code == 552 && a.step == "RCPT": // the mailbox is full
		return module.Busy
	case a.step == "RCPT" && slices.Contains([]string{"", "0.0", "1.0"}, detail) &&
		(a.code == 550 || a.code == 551 || a.code == 553) && a.acceptsOthers && !namesHost(a.words()):
		return module.Gone
	case a.step == "DATA":
		return module.Failed // perhaps the content is taken for spam: after some tries it is left out
	}
	return module.Blocked
}

// later returns what an answer is about that means "later".
func (a answer) later(detail string) module.Outcome {
	switch isHere := a.step == "RCPT" || a.step == "DATA"; {
	case a.code == 421: // the server closes the connection
		return module.Throttled
	case detail == "1.7", detail == "1.8", detail == "7.25", detail == "7.26", namesHostNow(a.words()):
		return module.Blocked
	case strings.HasPrefix(detail, "2."), a.step == "DATA" && detail == "7.1": // some servers greylist after the content
		return module.Busy
	case !isHere, a.step == "DATA", strings.HasPrefix(detail, "3."), strings.HasPrefix(detail, "5."):
		return module.Throttled
	}
	return module.Busy // a server that greylists, or that cannot look the address up
}
