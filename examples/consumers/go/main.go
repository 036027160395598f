// Consumes folded records: drops a fold-id that it has seen, and keeps the newest version of each group.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() { // arguments: BOOTSTRAP TOPIC GROUP
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(os.Args[1], ",")...), kgo.ConsumeTopics(os.Args[2]), kgo.ConsumerGroup(os.Args[3]),
	)
	if err != nil {
		log.Fatal(err)
	}
	seen, versions := map[string]bool{}, map[string]int64{} // in production: in your database, written with the result
	for {
		client.PollFetches(context.Background()).EachRecord(func(message *kgo.Record) {
			var record struct{ Fold struct{ Version int64 } }
			if err := json.Unmarshal(message.Value, &record); err != nil {
				log.Fatal(err)
			}
			key, id := string(message.Key), ""
			for _, header := range message.Headers {
				if header.Key == "fold-id" {
					id = string(header.Value)
				}
			}
			if !seen[id] && record.Fold.Version > versions[key] {
				fmt.Printf("process %s %s\n", key, id)
				versions[key] = record.Fold.Version
			}
			seen[id] = true
		})
	}
}
