package webpush

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"

	"github.com/pushfx/pushfx/module/pusher"
)

const maxSealed = 4096 // that push services take (RFC 8030, 7.2), and the size of a record

// seal encrypts a body with a fresh key and salt.
func (s *subscriber) seal(body []byte) []byte {
	own, _ := ecdh.P256().GenerateKey(rand.Reader) // which never fails
	salt := make([]byte, 16)
	rand.Read(salt)
	return sealWith(own, salt, s.to, body)
}

// sealWith encrypts a body (RFC 8291, 3.4) as one record, after the header of aes128gcm (RFC 8188, 2.1).
// Errors are impossible: the point was checked, and all lengths are fixed.
func sealWith(own *ecdh.PrivateKey, salt []byte, to pusher.Subscription, body []byte) []byte {
	shared, _ := own.ECDH(to.Point)
	public := own.PublicKey().Bytes()
	input, _ := hkdf.Key(sha256.New, shared, to.Auth, "WebPush: info\x00"+string(to.Point.Bytes())+string(public), sha256.Size)
	key, _ := hkdf.Key(sha256.New, input, salt, "Content-Encoding: aes128gcm\x00", 16)
	nonce, _ := hkdf.Key(sha256.New, input, salt, "Content-Encoding: nonce\x00", 12)
	block, _ := aes.NewCipher(key)
	gcm, _ := cipher.NewGCM(block)
	dst := binary.BigEndian.AppendUint32(append(make([]byte, 0, len(body)+128), salt...), maxSealed)
	dst = append(append(dst, byte(len(public))), public...)
	return gcm.Seal(dst, nonce, append(body, 2), nil) // 2 ends the last record (RFC 8188, 2)
}
