//! The vocabulary and every translator.
