package sessions

import (
	"crypto/subtle"
	"errors"

	"golang.org/x/crypto/bcrypt"
)

const (
	// DefaultPassword is the password of every user until they change it.
	DefaultPassword = "demo"

	// MaxPasswordBytes is the longest password. The hash would ignore the rest of a longer one.
	MaxPasswordBytes = 72
)

func hashPassword(password string) (string, error) {
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.DefaultCost)
	return string(hash), err
}

// checkPassword compares a password with the stored hash, or with the default password if no hash is stored. Errors:
// [ErrWrongPassword].
func checkPassword(password, stored string) error {
	if stored == "" {
		if subtle.ConstantTimeCompare([]byte(password), []byte(DefaultPassword)) == 0 {
			return ErrWrongPassword
		}
		return nil
	}
	err := bcrypt.CompareHashAndPassword([]byte(stored), []byte(password))
	if errors.Is(err, bcrypt.ErrMismatchedHashAndPassword) {
		return ErrWrongPassword
	}
	return err
}
