package main
import ("context";"os";"fmt")
func main(){ if err:=serveFloor(context.Background(), os.Args[1]); err!=nil {fmt.Println(err)} }
