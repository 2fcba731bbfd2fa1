package redistest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
)

const logLines = 20 // of a server's log, in messages

// errPortTaken says that a server ended because it could not listen.
var errPortTaken = errors.New("the port is taken")

// process is one run of a server binary.
type process struct {
	os      *os.Process
	logPath string
	done    chan struct{} // closed when the process has ended and is reaped
	exit    error         // how it ended, to be read after done
}

// startProcess runs the binary in the folder, with its output in a log file
// there.
func startProcess(binary, dir string, args []string) (*process, error) {
	log, err := os.CreateTemp(dir, "server-*.log")
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(binary, args...)
	cmd.Dir = dir
	cmd.Stdout = log
	cmd.Stderr = log
	cmd.SysProcAttr = endWithParent()

	p := &process{logPath: log.Name(), done: make(chan struct{})}
	started := make(chan error)
	go p.run(cmd, started)
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// run starts the command, reports that, and reaps the process when it ends.
// It keeps its OS thread all that time: what Linux calls the death of the
// parent is the end of the very thread that started the process.
func (p *process) run(cmd *exec.Cmd, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := cmd.Start()
	p.os = cmd.Process
	started <- err
	if err != nil {
		return
	}
	p.exit = cmd.Wait()
	close(p.done)
}

func (p *process) alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// kill ends the process, be it paused, and waits until it is reaped.
func (p *process) kill() error {
	if err := p.os.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.done
	return nil
}

// exitError tells why the process, which has ended, ended so early.
func (p *process) exitError() error {
	// Redis says "bind: Address already in use" or, with another C library,
	// "bind: Address in use".
	if log := p.log(); strings.Contains(log, "Address already in use") || strings.Contains(log, "Address in use") {
		return errPortTaken
	}
	if p.exit == nil {
		return errors.New("the server ended without an error")
	}
	return fmt.Errorf("the server ended: %w", p.exit)
}

func (p *process) log() string {
	content, err := os.ReadFile(p.logPath)
	if err != nil {
		return "cannot read the log: " + err.Error()
	}
	return string(content)
}

// lastLog returns the last lines of the log, for messages.
func (p *process) lastLog() string {
	lines := strings.Split(strings.TrimSpace(p.log()), "\n")
	lines = lines[max(0, len(lines)-logLines):]
	return "last log lines of process " + fmt.Sprint(p.os.Pid) + ":\n\t" + strings.Join(lines, "\n\t")
}
