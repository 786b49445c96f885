package org.apache.hadoop.fs;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;

/** What Hadoop's local file system starts processes for, done by calls: see calls.py. */
public abstract class Shell extends org.apache.hadoop.util.Shell {
    public static String execCommand(String[] command) throws IOException {
        Path path = Paths.get(command[command.length - 1]);
        if (command.length == 3 && command[0].equals("chmod")) {
            Files.setAttribute(path, "unix:mode", Integer.valueOf(Integer.parseInt(command[1], 8)));
            return "";
        }
        if (command.length == 2 && command[0].equals("readlink")) {
            return Files.readSymbolicLink(path).toString();
        }
        return org.apache.hadoop.util.Shell.execCommand(command);
    }
}
