package inbox

import (
	"bytes"
	"fmt"
	"net/smtp"
	"slices"
	"strings"
	"testing"
)

const example = "From: Demo <no-reply@example.org>\r\nTo: <alice@example.org>\r\n" +
	"Subject: =?utf-8?q?Tea_=E2=98=95?=\r\nList-Unsubscribe: <mailto:x@example.org>,\r\n <http://127.0.0.1/off?t=1>\r\n" +
	"Content-Type: multipart/alternative; boundary=b\r\n\r\n" +
	"--b\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\nTea =E2=98=95=\r\n!\r\n" +
	"--b\r\nContent-Type: text/html; charset=utf-8\r\nContent-Transfer-Encoding: base64\r\n\r\nPHA+VGVh\r\nPC9wPg==\r\n--b--\r\n"

func start(t *testing.T) *Inbox {
	t.Helper()
	i, err := Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { i.Close() })
	return i
}

func (i *Inbox) send(text string) error {
	return smtp.SendMail(i.Address(), nil, "bounces+1@example.org", []string{"alice@example.org"}, []byte(text))
}

func TestAMailArrives(t *testing.T) {
	t.Parallel()
	i := start(t)
	_, _, changed := i.Since(0)
	if err := i.send(example); err != nil {
		t.Fatal(err)
	}
	<-changed
	mails, count, _ := i.Since(0)
	if len(mails) != 1 || count != 1 {
		t.Fatalf("got %d of %d mails", len(mails), count)
	}
	got := mails[0]
	if got.Sender != "bounces+1@example.org" || !slices.Equal(got.To, []string{"alice@example.org"}) || got.Subject != "Tea ☕" ||
		got.Text != "Tea ☕!" || got.HTML != "<p>Tea</p>" || got.Unsubscribe != "http://127.0.0.1/off?t=1" ||
		!strings.HasPrefix(got.Head, "From: Demo ") || strings.Contains(got.Head, "--b") || got.At.IsZero() {
		t.Errorf("got %+v", got)
	}
	if found, ok := i.Find(got.ID); !ok || found.HTML != got.HTML {
		t.Errorf("%q is not found", got.ID)
	}
	if _, ok := i.Find(""); ok {
		t.Error("a mail without an id is found")
	}
	if news, _, _ := i.Since(count); len(news) != 0 {
		t.Errorf("got %d mails again", len(news))
	}
}

func TestMailsThatCannotBeReadAreRefused(t *testing.T) {
	t.Parallel()
	i := start(t)
	nested := "Subject: x\r\n"
	for n := range maxDepth + 1 {
		nested += fmt.Sprintf("Content-Type: multipart/mixed; boundary=b%d\r\n\r\n--b%[1]d\r\n", n)
	}
	for name, text := range map[string]string{
		"no header":     "no header\r\n\r\nx\r\n",
		"broken base64": "Content-Transfer-Encoding: base64\r\n\r\n!!!\r\n",
		"broken type":   "Content-Type: text/;\r\n\r\nx\r\n",
		"cut off":       strings.TrimSuffix(example, "--b--\r\n"),
		"nested":        nested,
		"too large":     "Subject: x\r\n\r\n" + strings.Repeat(strings.Repeat("x", 98)+"\r\n", maxMailBytes/99),
	} {
		if err := i.send(text); err == nil || !strings.HasPrefix(err.Error(), "55") {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if _, count, _ := i.Since(0); count != 0 {
		t.Errorf("%d mails arrived", count)
	}
}

func TestTheLastMailsStay(t *testing.T) {
	t.Parallel()
	i := start(t)
	for n := range maxMails + 3 {
		if err := i.send(fmt.Sprintf("Subject: %d\r\n\r\nx\r\n", n)); err != nil {
			t.Fatal(err)
		}
	}
	if mails, count, _ := i.Since(0); len(mails) != maxMails || count != maxMails+3 || mails[0].Subject != "3" {
		t.Errorf("got %d of %d, from %q on", len(mails), count, mails[0].Subject)
	}
	large := "Subject: large\r\n\r\n" + strings.Repeat(strings.Repeat("x", 98)+"\r\n", 250_000/100)
	for range maxMails {
		if err := i.send(large); err != nil {
			t.Fatal(err)
		}
	}
	if mails, _, _ := i.Since(0); len(mails) != maxBytes/250_000 || i.size > maxBytes {
		t.Errorf("%d large mails with %d bytes stay", len(mails), i.size)
	}
}

// FuzzRead reads any mail. It must not panic, and links are of the web only.
func FuzzRead(f *testing.F) {
	f.Add([]byte(example))
	f.Add([]byte("List-Unsubscribe: <javascript:alert(1)>, https:x\r\n\r\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := read(text)
		if link := m.Unsubscribe; err == nil && link != "" && !strings.HasPrefix(strings.ToLower(link), "http") {
			t.Fatalf("%q is a link", link)
		}
		if err == nil && !bytes.Contains(text, []byte(m.Head)) {
			t.Fatalf("%q is not of the mail", m.Head)
		}
	})
}
