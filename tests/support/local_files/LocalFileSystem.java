package org.apache.hadoop.fs;

import java.io.File;
import java.io.IOException;
import java.net.URI;
import org.apache.hadoop.conf.Configuration;

/** Hadoop's local file system, over {@code RawFiles}, in place of its own class of this name. */
public class LocalFileSystem extends ChecksumFileSystem {
  static final URI NAME = URI.create("file:///");

  public LocalFileSystem() {
    this(new RawFiles());
  }

  public LocalFileSystem(FileSystem rawFiles) {
    super(rawFiles);
  }

  @Override
  public void initialize(URI name, Configuration conf) throws IOException {
    if (fs.getConf() == null) {
      fs.initialize(name, conf);
    }
    if (!name.getScheme().equals(fs.getUri().getScheme())) {
      swapScheme = name.getScheme();
    }
  }

  @Override
  public String getScheme() {
    return "file";
  }

  public FileSystem getRaw() {
    return getRawFileSystem();
  }

  public File pathToFile(Path path) {
    return ((RawLocalFileSystem) fs).pathToFile(path);
  }

  @Override
  public boolean supportsSymlinks() {
    return true;
  }

  @Override
  public void createSymlink(Path target, Path link, boolean createParent) throws IOException {
    fs.createSymlink(target, link, createParent);
  }

  @Override
  public FileStatus getFileLinkStatus(Path path) throws IOException {
    return fs.getFileLinkStatus(path);
  }

  @Override
  public Path getLinkTarget(Path path) throws IOException {
    return fs.getLinkTarget(path);
  }
}
