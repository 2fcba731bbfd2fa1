package redistest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

const helperVariable = "REDISTEST_HELPER"

// TestHelper is the test binary that TestServersEndWithKilledTest kills.
func TestHelper(t *testing.T) {
	if os.Getenv(helperVariable) == "" {
		t.Skip("runs only for another test")
	}
	fmt.Println(Single(t).Pid())
	<-t.Context().Done()
}

func TestServersEndWithKilledTest(t *testing.T) {
	t.Parallel()
	Require(t)
	ctx := testContext(t)
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestHelper$")
	cmd.Env = append(os.Environ(), helperVariable+"=1", "TMPDIR="+t.TempDir())
	output, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, readErr := bufio.NewReader(output).ReadString('\n')
	if err := cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = cmd.Wait() // It was killed.
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatalf("no process id in %q: %v", line, readErr)
	}
	if err := poll(ctx, func(context.Context) error { return checkDead(pid) }); err != nil {
		t.Error(err)
	}
}

// checkDead succeeds when the process is gone, or is dead and only not reaped
// yet by the process that inherited it.
func checkDead(pid int) error {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	if bytes.Contains(stat, []byte(") Z ")) || bytes.Contains(stat, []byte(") X ")) {
		return nil
	}
	return errors.New("the server still runs: " + string(stat))
}
