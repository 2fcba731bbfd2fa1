// Package signed makes tokens that only the holders of a key can make, and that nobody stores.
package signed

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
)

// codeBytes is short, so that a token is the name before the @ of an address.
const codeBytes = 8

// Token returns the token of a text, in base64url. It is valid for its purpose alone.
func Token(key []byte, purpose string, text []byte) string {
	return base64.RawURLEncoding.EncodeToString(append(code(key, purpose, text), text...))
}

// Read returns the text of a token. Ok is false if no holder of the key has made it for the purpose.
func Read(key []byte, purpose, token string) (text []byte, ok bool) {
	read, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(read) < codeBytes || !hmac.Equal(read[:codeBytes], code(key, purpose, read[codeBytes:])) {
		return nil, false
	}
	return read[codeBytes:], true
}

func code(key []byte, purpose string, text []byte) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write(append([]byte(purpose+"\x00"), text...))
	return mac.Sum(nil)[:codeBytes]
}
