package main

import (
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"fmt"
)

// defaultPassword is that of every user who has not changed it.
const defaultPassword = "demo"

// The parameters of new password hashes; stored ones have their own. For
// passwords that are worth something take 600,000 iterations or more.
const (
	passwordIterations = 100_000
	passwordSaltBytes  = 16
)

// passwordHash is what is stored of a password: its PBKDF2 with HMAC-SHA-256.
type passwordHash struct {
	Iterations int    `json:"iterations"`
	Salt       []byte `json:"salt"`
	Key        []byte `json:"key"`
}

// hashPassword returns the stored form of a password.
func hashPassword(password string) (stored []byte, err error) {
	hash := passwordHash{Iterations: passwordIterations, Salt: make([]byte, passwordSaltBytes)}
	_, _ = rand.Read(hash.Salt) // never fails
	if hash.Key, err = hash.derive(password); err != nil {
		return nil, err
	}
	return json.Marshal(hash)
}

// isPassword reports whether a password is the one that is stored. Where none
// is stored, it is the default one.
func isPassword(password string, stored []byte) (bool, error) {
	if len(stored) == 0 {
		return subtle.ConstantTimeCompare([]byte(password), []byte(defaultPassword)) == 1, nil
	}
	var hash passwordHash
	if err := json.Unmarshal(stored, &hash); err != nil {
		return false, fmt.Errorf("stored password: %w", err)
	}
	key, err := hash.derive(password)
	return err == nil && subtle.ConstantTimeCompare(key, hash.Key) == 1, err
}

func (h passwordHash) derive(password string) ([]byte, error) {
	return pbkdf2.Key(sha256.New, password, h.Salt, h.Iterations, sha256.Size)
}
