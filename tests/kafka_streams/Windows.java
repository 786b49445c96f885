import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.TestInputTopic;
import org.apache.kafka.streams.TopologyTestDriver;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.SlidingWindows;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.WindowStore;

/**
 * Kafka Streams' counts by sessions and sliding windows, for test_window_kinds.py.
 *
 * <p>Standard input, a case: a line "session GAP GRACE" or "sliding SIZE GRACE", then a line "KEY TIME" per record,
 * then an empty line. Standard output, per record: a line of "KEY START END COUNT TIME" for each change, parted by
 * commas, COUNT "-" for a tombstone; after a case an empty line. Times are milliseconds. A store of sessions keeps those
 * that are open; one of windows a year, so that only grace decides what is late.
 */
public final class Windows {
  private static final StringBuilder CHANGES = new StringBuilder();

  public static void main(String[] arguments) throws Exception {
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    for (String head = in.readLine(); head != null; head = in.readLine()) {
      StreamsBuilder builder = new StreamsBuilder();
      counted(builder, head.split(" ")).toStream().process(Emitted::new);
      Properties settings = new Properties();
      settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "windows");
      settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, "none:1");
      settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
      try (TopologyTestDriver driver = new TopologyTestDriver(builder.build(), settings)) {
        TestInputTopic<String, String> topic =
            driver.createInputTopic("in", Serdes.String().serializer(), Serdes.String().serializer());
        for (String line = in.readLine(); !line.isEmpty(); line = in.readLine()) {
          String[] record = line.split(" ");
          CHANGES.setLength(0);
          topic.pipeInput(record[0], "v", Instant.ofEpochMilli(Long.parseLong(record[1])));
          out.println(CHANGES);
        }
      }
      out.println();
    }
    out.flush();
  }

  private static KTable<Windowed<String>, Long> counted(StreamsBuilder builder, String[] head) {
    Duration size = Duration.ofMillis(Long.parseLong(head[1])), grace = Duration.ofMillis(Long.parseLong(head[2]));
    KGroupedStream<String, String> groups =
        builder.stream("in", Consumed.with(Serdes.String(), Serdes.String()))
            .groupByKey(Grouped.with(Serdes.String(), Serdes.String()));
    return head[0].equals("session")
        ? groups.windowedBy(SessionWindows.ofInactivityGapAndGrace(size, grace))
            .count(Materialized.<String, Long, SessionStore<Bytes, byte[]>>as("counts")
                .withRetention(size.plus(grace).plusMillis(1)))
        : groups.windowedBy(SlidingWindows.ofTimeDifferenceAndGrace(size, grace))
            .count(Materialized.<String, Long, WindowStore<Bytes, byte[]>>as("counts")
                .withRetention(Duration.ofDays(365)));
  }

  private static final class Emitted extends ContextualProcessor<Windowed<String>, Long, Void, Void> {
    @Override
    public void process(Record<Windowed<String>, Long> change) {
      CHANGES.append(CHANGES.length() == 0 ? "" : ",").append(change.key().key());
      CHANGES.append(' ').append(change.key().window().start()).append(' ').append(change.key().window().end());
      CHANGES.append(' ').append(change.value() == null ? "-" : change.value()).append(' ').append(change.timestamp());
    }
  }
}
