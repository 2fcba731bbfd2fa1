package delivery
import "context"
func (b *bench) measureFanOut(ctx context.Context) error { return nil }
func (b *bench) measureDecide(ctx context.Context) error { return nil }
func (b *bench) measureIdle(ctx context.Context) error { return nil }
func (b *bench) measureOutage(ctx context.Context) error { return nil }
func (b *bench) measureKill(ctx context.Context) error { return nil }
func (b *bench) measureTrouble(ctx context.Context) error { return nil }
func (b *bench) measureKnown(ctx context.Context) error { return nil }
