//! The client library, the mount and the command line.
