// Hangs for `orbit bench why`: mutexes, beside a ticker.
package main

import (
	"fmt"
	"sync"
	"time"
)

var accounts, ledger sync.Mutex
var both sync.WaitGroup

func payOrder(first, second *sync.Mutex) {
	first.Lock()
	both.Done()
	both.Wait()
	second.Lock()
}

func main() {
	fmt.Println("ready")
	both.Add(2)
	go payOrder(&accounts, &ledger)
	go payOrder(&ledger, &accounts)
	for range time.Tick(100 * time.Millisecond) {
	}
}
