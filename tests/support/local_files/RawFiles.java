package org.apache.hadoop.fs;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Local files whose modes and links are set and read by calls of the system.
 *
 * <p>Hadoop without its native library starts a {@code chmod} for each mode, so four processes for
 * each file of a checkpoint or a table, and a {@code readlink} for each end of a renaming.
 */
public class RawFiles extends RawLocalFileSystem {
  @Override
  public void setPermission(Path path, FsPermission permission) throws IOException {
    if (permission.getStickyBit()) {
      super.setPermission(path, permission);
    } else {
      Files.setPosixFilePermissions(
          pathToFile(path).toPath(), PosixFilePermissions.fromString(permission.toString()));
    }
  }

  @Override
  public FileStatus getFileLinkStatus(Path path) throws IOException {
    return Files.isSymbolicLink(pathToFile(path).toPath())
        ? super.getFileLinkStatus(path)
        : getFileStatus(path);
  }
}
