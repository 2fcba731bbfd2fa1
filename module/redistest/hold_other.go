//go:build !linux

package redistest

// holdPort does nothing here: others may take the port of a stopped server.
func holdPort(int) (letGo func()) { return func() {} }
