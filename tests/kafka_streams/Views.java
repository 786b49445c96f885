import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.TestInputTopic;
import org.apache.kafka.streams.TopologyTestDriver;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;

/**
 * Kafka Streams' filters, maps, merges, groups and changes of kind, for test_view_kinds.py.
 *
 * <p>Standard input, a case: a line "INPUT[,INPUT] STEP...", then a line "INPUT KEY TIME VALUE" per record, then an
 * empty line. T is a table, the others are streams. A value is "+x" where it meets the condition, else "-x", of A "x.y",
 * "~" where there is none; so is a key. Standard output, per record: a line of "KEY VALUE TIME" for each change, parted
 * by commas; after a case an empty line.
 */
public final class Views {
  private static final Serde<String> TEXT = Serdes.String();
  private static final StringBuilder CHANGES = new StringBuilder();

  public static void main(String[] arguments) throws Exception {
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    for (String head = in.readLine(); head != null; head = in.readLine()) {
      String[] words = head.split(" "), inputs = words[0].split(",");
      StreamsBuilder builder = new StreamsBuilder();
      made(builder, inputs, Arrays.copyOfRange(words, 1, words.length)).process(Emitted::new);
      Properties settings = new Properties();
      settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "views");
      settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, "none:1");
      settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 0);
      try (TopologyTestDriver driver = new TopologyTestDriver(builder.build(), settings)) {
        Map<String, TestInputTopic<String, String>> topics = new HashMap<>();
        for (String input : inputs)
          topics.put(input, driver.createInputTopic(input, TEXT.serializer(), TEXT.serializer()));
        for (String line = in.readLine(); !line.isEmpty(); line = in.readLine()) {
          String[] record = line.split(" ");
          CHANGES.setLength(0);
          Instant time = Instant.ofEpochMilli(Long.parseLong(record[2]));
          topics.get(record[0]).pipeInput(orNull(record[1]), orNull(record[3]), time);
          out.println(CHANGES);
        }
      }
      out.println();
    }
    out.flush();
  }

  private static KStream<String, String> made(StreamsBuilder builder, String[] inputs, String[] steps) {
    boolean isTable = inputs[0].equals("T");
    KTable<String, String> table = isTable ? builder.table(inputs[0], Consumed.with(TEXT, TEXT)) : null;
    KStream<String, String> stream = isTable ? null : builder.stream(inputs[0], Consumed.with(TEXT, TEXT));
    for (int other = 1; other < inputs.length; other++)
      stream = stream.merge(builder.stream(inputs[other], Consumed.with(TEXT, TEXT)));
    for (String step : steps) {
      switch (step) {
        case "where":
          if (table == null) stream = stream.filter((key, value) -> meets(value));
          else table = table.filter((key, value) -> meets(value), stored());
          break;
        case "swap":
          if (table == null) stream = stream.mapValues(value -> value);
          else table = table.mapValues(value -> value);
          break;
        case "key_by":
          stream = stream.map((key, value) -> value == null
              ? KeyValue.pair(null, null)
              : KeyValue.pair(orNull(value.substring(1)), value.charAt(0) + (key == null ? "~" : key)));
          break;
        case "explode":
          stream = stream.flatMapValues(value -> value == null || value.equals("null")
              ? Arrays.<String>asList()
              : Arrays.stream(value.split("\\.")).filter(one -> !one.isEmpty()).map(one -> "+" + one).toList());
          break;
        case "to_stream":
          stream = table.toStream();
          table = null;
          break;
        case "to_table":
          table = stream.toTable(stored());
          break;
        case "count":
          table = table.groupBy(
                  (key, value) -> KeyValue.pair(orNull(value.substring(1)), value), Grouped.with(TEXT, TEXT))
              .count().mapValues(count -> count == 0 ? null : "+" + count);
          break;
        default:
          throw new IllegalArgumentException(step);
      }
    }
    return table == null ? stream : table.toStream();
  }

  private static Materialized<String, String, KeyValueStore<Bytes, byte[]>> stored() {
    return Materialized.with(TEXT, TEXT);
  }

  private static boolean meets(String value) {
    return value != null && value.startsWith("+");
  }

  private static String orNull(String text) {
    return text.equals("~") ? null : text;
  }

  private static final class Emitted extends ContextualProcessor<String, String, Void, Void> {
    @Override
    public void process(Record<String, String> change) {
      CHANGES.append(CHANGES.length() == 0 ? "" : ",").append(change.key() == null ? "~" : change.key());
      CHANGES.append(' ').append(change.value() == null ? "~" : change.value()).append(' ').append(change.timestamp());
    }
  }
}
