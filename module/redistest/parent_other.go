//go:build !linux

package redistest

import "syscall"

// endWithParent does nothing here: a server outlives a test binary that is
// killed.
func endWithParent() *syscall.SysProcAttr {
	return nil
}
