package dovetail;

import java.io.IOException;
import java.nio.file.Files;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Hadoop's local file system, which sets the permissions of a file by a system call.
 *
 * <p>Without Hadoop's native library it starts a {@code chmod} process for each file, and another
 * one for the checksum file beside it. Everything else is Hadoop's own.
 */
public final class LocalDisk extends LocalFileSystem {
  public LocalDisk() {
    super(new Raw());
  }

  private static final class Raw extends RawLocalFileSystem {
    @Override
    public void setPermission(Path path, FsPermission permission) throws IOException {
      Files.setAttribute(pathToFile(path).toPath(), "unix:mode", (int) permission.toShort());
    }
  }
}
