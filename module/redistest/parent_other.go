//go:build !linux

package redistest

import "syscall"

// endWithParent does nothing on this system: servers go on when the test binary is killed.
func endWithParent() *syscall.SysProcAttr { return nil }
