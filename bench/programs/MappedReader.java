import java.io.IOException;
import java.nio.ByteOrder;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

/** Reads a file through a MappedByteBuffer: a long at each of many random places, or all of it from its beginning to its end. */
public class MappedReader {
    static final int RANDOM_READS = 2000;

    public static void main(String[] arguments) throws IOException {
        boolean random = arguments[0].equals("random");
        int reads = Math.max(1, (int) Math.round(RANDOM_READS * Double.parseDouble(arguments[2])));
        long start = System.nanoTime();
        long checksum;
        try (FileChannel file = FileChannel.open(Path.of(arguments[1]), StandardOpenOption.READ)) {
            MappedByteBuffer bytes = file.map(FileChannel.MapMode.READ_ONLY, 0, file.size());
            bytes.order(ByteOrder.LITTLE_ENDIAN);
            checksum = random ? readAtRandom(bytes, reads) : readThrough(bytes);
        }
        double seconds = (System.nanoTime() - start) / 1e9;
        String what = random ? String.format("reads a long at %,d random places", reads) : "adds up the file once";
        System.out.printf("{\"what\": \"Java, MappedByteBuffer: %s\", \"seconds\": %.6f, \"checksum\": \"%016x\"}%n", what, seconds, checksum);
    }

    static long readAtRandom(MappedByteBuffer bytes, int reads) {
        int longs = bytes.capacity() / 8;
        long state = 88172645463325252L;
        long checksum = 0;
        for (int read = 0; read < reads; read++) {
            state ^= state << 13;
            state ^= state >>> 7;
            state ^= state << 17;
            checksum = checksum * 31 + bytes.getLong((int) ((state >>> 1) % longs) * 8);
        }
        return checksum;
    }

    static long readThrough(MappedByteBuffer bytes) {
        long checksum = 0;
        for (int at = 0; at + 8 <= bytes.capacity(); at += 8) {
            checksum = checksum * 31 + bytes.getLong(at);
        }
        return checksum;
    }
}
