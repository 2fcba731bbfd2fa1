package inbox

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"mime/quotedprintable"
	"net/mail"
	"net/url"
	"strings"
	"time"
)

// Mail is a mail that arrived.
type Mail struct {
	ID     string // random, cannot be guessed
	At     time.Time
	Sender string   // of the envelope
	To     []string // of the envelope

	Head        string // the headers as they arrived
	Header      mail.Header
	Subject     string // decoded
	Unsubscribe string // the first http or https address of List-Unsubscribe, empty for none
	Text, HTML  string // decoded, empty for none
}

func (m Mail) size() int { return 2*len(m.Head) + len(m.Text) + len(m.HTML) }

// read parses a mail with its parts.
func read(text []byte) (m Mail, err error) {
	message, err := mail.ReadMessage(bytes.NewReader(text))
	if err != nil {
		return m, err
	}
	head, _, _ := bytes.Cut(text, []byte("\r\n\r\n"))
	m.Head, m.Header = string(head), message.Header
	if m.Subject, err = new(mime.WordDecoder).DecodeHeader(message.Header.Get("Subject")); err != nil {
		return m, fmt.Errorf("subject: %w", err)
	}
	for part := range strings.SplitSeq(message.Header.Get("List-Unsubscribe"), ",") {
		link := strings.Trim(strings.TrimSpace(part), "<>")
		if u, err := url.Parse(link); err == nil && (u.Scheme == "http" || u.Scheme == "https") && m.Unsubscribe == "" {
			m.Unsubscribe = link
		}
	}
	return m, m.readPart(message.Header, message.Body, 0)
}

// maxDepth is how deep multipart bodies may be nested.
const maxDepth = 4

type header interface{ Get(name string) string }

func (m *Mail) readPart(h header, body io.Reader, depth int) error {
	kind, params := "text/plain", map[string]string(nil)
	if text := h.Get("Content-Type"); text != "" {
		var err error
		if kind, params, err = mime.ParseMediaType(text); err != nil {
			return err
		}
	}
	if strings.HasPrefix(kind, "multipart/") {
		return m.readParts(multipart.NewReader(body, params["boundary"]), depth+1)
	}
	switch strings.ToLower(h.Get("Content-Transfer-Encoding")) {
	case "base64":
		body = base64.NewDecoder(base64.StdEncoding, body)
	case "quoted-printable":
		body = quotedprintable.NewReader(body)
	}
	text, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	switch kind {
	case "text/plain":
		m.Text += string(text)
	case "text/html":
		m.HTML += string(text)
	}
	return nil
}

func (m *Mail) readParts(parts *multipart.Reader, depth int) error {
	if depth > maxDepth {
		return errors.New("too many parts in each other")
	}
	for {
		part, err := parts.NextRawPart()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := m.readPart(part.Header, part, depth); err != nil {
			return err
		}
	}
}
