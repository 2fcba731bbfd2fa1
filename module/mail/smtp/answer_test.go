package smtp

import (
	"strconv"
	"testing"

	"github.com/pushfx/pushfx/module"
)

// The texts are those of Postfix, Exim, qmail, Exchange, Gmail and OpenSMTPD.
func TestAnswersOfMailServers(t *testing.T) {
	t.Parallel()
	for _, of := range []struct {
		step    string
		want    module.Outcome
		answers []string
	}{
		{"greeting", module.Blocked, []string{
			"554 5.7.1 Service unavailable; Client host [192.0.2.1] blocked using example.org", "554 No SMTP service here", "550 IP rejected",
		}},
		{"greeting", module.Throttled, []string{"421 4.7.0 Try again later, closing connection.", "421 Too many concurrent SMTP connections", "450 busy"}},
		{"EHLO", module.Blocked, []string{"550 Access denied - Invalid HELO name", "501 Syntactically invalid EHLO argument(s)", "502 not implemented"}},
		{"AUTH", module.Blocked, []string{
			"535 5.7.8 Authentication credentials invalid", "535-5.7.8 Username and Password not accepted", "530 5.7.0 Must issue a STARTTLS command first",
			"534 5.7.9 Application-specific password required",
		}},
		{"AUTH", module.Throttled, []string{"454 4.7.0 Temporary failure"}},
		{"MAIL", module.Blocked, []string{
			"530 5.7.57 Client not authenticated to send mail", "550 5.1.8 Sender address rejected", "553 5.7.1 Sender address rejected: not owned by user",
			"550 5.7.60 client does not have permissions to send as this sender",
			"450 4.1.8 Sender address rejected: Domain not found", "501 5.1.7 Bad sender address syntax",
			"553 sorry, your envelope sender is in my badmailfrom list (#5.7.1)", "550 5.1.1 unknown",
		}},
		{"MAIL", module.Unfit, []string{"552 5.3.4 Message size exceeds fixed limit", "552 message size exceeds maximum value"}},
		{"MAIL", module.Throttled, []string{
			"452 4.3.1 Insufficient system storage", "421 4.3.2 Service not active", "451 qq temporary problem (#4.3.0)",
			"452 space shortage, please try later",
		}},
		{"RCPT", module.Gone, []string{
			"550 5.1.1 <a@example.org>: Recipient address rejected: User unknown in local recipient table",
			"550 5.1.1 The email account that you tried to reach does not exist.",
			"550 5.1.10 RESOLVER.ADR.RecipientNotFound; Recipient not found by SMTP address lookup",
			"550 5.2.1 The email account that you tried to reach is disabled.", "550 5.1.2 Host unknown",
			"501 5.1.3 Bad recipient address syntax", "550 5.1.6 The user has moved", "524 5.2.4 Mailing list expansion problem",
			"550 sorry, no mailbox here by that name. (#5.1.1)", "551 5.1.1 unknown",
		}},
		{"RCPT", module.Busy, []string{
			"450 4.2.0 <a@example.org>: Recipient address rejected: Greylisted, see http://postgrey.example.org",
			"451 4.7.1 Greylisting in action, please come back later", "451 Temporary local problem - please try later",
			"450 4.1.1 <a@example.org>: Recipient address rejected: unverified address",
			"450 4.2.1 The user you are trying to contact is receiving mail at a rate that prevents additional messages from being delivered.",
			"452 4.2.2 The email account that you tried to reach is over quota.", "450 mailbox unavailable", "450 4.1.2 Domain not found",
			"451 4.4.3 Temporary lookup failure",
			"552 5.2.2 The email account that you tried to reach is over quota", "552 mailbox full", "554 5.2.2 mailbox full",
			"450 <sender.spf@relay.example>: Recipient address rejected",
		}},
		{"RCPT", module.Throttled, []string{
			"421 4.4.2 Connection dropped", "452 4.3.1 Out of memory", "452 4.5.3 Too many recipients",
			"451 4.3.0 Temporary server error. Please try again later",
		}},
		{"RCPT", module.Blocked, []string{
			"550 relay not permitted", "554 5.7.1 <a@example.org>: Relay access denied", "454 4.7.1 <a@example.org>: Relay access denied",
			"553 sorry, that domain isn't in my list of allowed rcpthosts (#5.7.1)",
			"553 sorry, that domain isn't in my list of allowed rcpthosts", "550 5.7.54 SMTP; Unable to relay recipient in non-accepted domain",
			"550 5.7.64 TenantAttribution; Relay Access Denied", "550 5.7.1 Unable to relay",
			"550 5.4.1 Recipient address rejected: Access denied",
			"550 5.1.0 <push@example.org>: Sender address rejected: User unknown in virtual mailbox table", "550 5.1.8 Sender address rejected",
			"550 Sender verify failed",
			"504 5.5.2 <host>: Helo command rejected: need fully-qualified hostname", "450 4.7.25 Client host rejected: cannot find your hostname",
			"450 4.7.1 Client host rejected: cannot find your reverse hostname",
			"550 5.0.0 Relaying denied", "550 Rejected because 192.0.2.1 is in a black list", "550 SPF check failed",
			"554 Service unavailable; Client host blocked using example.org", "550 Administrative prohibition",
			"550 5.7.1 Message rejected", "554 5.7.1 Service unavailable", "530 5.7.1 Authentication required", "503 Bad sequence of commands",
			"554 Transaction failed", "500 unknown", "550 5.3.0 no", "550 5.4.4 Host not found",
		}},
		{"DATA", module.Unfit, []string{
			"552 5.3.4 Message too big for system", "552 Message size exceeds maximum permitted", "554 5.6.0 Corrupt message",
			"550 5.6.7 SMTPUTF8 is required", "552 5.2.3 Message length exceeds administrative limit",
		}},
		{"DATA", module.Blocked, []string{
			"550 5.7.26 This mail has been blocked because the sender is unauthenticated.",
			"451 4.7.26 This mail is unauthenticated, SPF and DKIM did not pass",
		}},
		{"DATA", module.Failed, []string{
			"554 5.7.1 Message rejected under suspicion of SPAM",
			"550-5.7.1 [192.0.2.1] Our system has detected that this message is likely unsolicited mail.",
			"552 5.7.0 This message was blocked because its content presents a potential security issue.", "554 Transaction failed", "554 5.0.0 no",
			"550 High probability of spam", "550 Administrative prohibition", "554 5.3.0 no",
		}},
		{"DATA", module.Busy, []string{"552 5.2.2 Mailbox full", "452 4.2.2 Over quota", "450 4.2.1 at a rate", "451 4.7.1 Try again later", "451 4.7.1 Ratelimit \"to\" exceeded"}},
		{"DATA", module.Gone, []string{"550 5.1.1 unknown user", "554 5.1.10 RecipientNotFound"}},
		{"DATA", module.Throttled, []string{
			"451 4.3.0 queue file write error", "452 4.3.1 Insufficient system storage", "421 4.7.0 Our system has detected an unusual rate",
			"451 4.7.0 Temporary server error",
		}},
	} {
		for _, text := range of.answers {
			for _, acceptsOthers := range []bool{false, true} {
				code, _ := strconv.Atoi(text[:3])
				a := answer{of.step, code, text[4:], acceptsOthers}
				if got := a.outcome(); got != of.want {
					t.Errorf("%s: %s, accepts others %v: got %s, want %s", of.step, text, acceptsOthers, got, of.want)
				}
			}
		}
	}
}

// An answer without a code of its own for unknown addresses is about the recipient only at a server
// that accepts others.
func TestARefusalWithoutACodeIsAboutTheRecipientOnlyBesideOthers(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"550 No such user", "550 5.1.0 Address rejected.", "553 sorry, no mailbox here by that name", "551 User not local", "550 Unrouteable address",
		"550 5.0.0 unknown", "550 <spam@blocklist.example>: User unknown", "550 denied@relay.example unknown",
	} {
		code, _ := strconv.Atoi(text[:3])
		if got := (answer{"RCPT", code, text[4:], true}).outcome(); got != module.Gone {
			t.Errorf("%s: beside others: got %s", text, got)
		}
		for step, want := range map[string]module.Outcome{"RCPT": module.Blocked, "DATA": module.Failed, "MAIL": module.Blocked} {
			if got := (answer{step, code, text[4:], step != "RCPT"}).outcome(); got != want {
				t.Errorf("%s: at %s: got %s", text, step, got)
			}
		}
	}
}
