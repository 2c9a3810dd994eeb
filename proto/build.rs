//! Generates the messages and the service from `mortar.proto`, without protoc.

use std::env;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=mortar.proto");
    let descriptors = protox::compile(["mortar.proto"], ["."])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    std::fs::write(out.join("descriptors.bin"), prost::Message::encode_to_vec(&descriptors))?;
    tonic_prost_build::configure()
        .bytes(".")
        .codec_path("crate::wire::Presized")
        // The few large ones, so that moving any other is cheap.
        .boxed(".mortar.v1.Create.birth")
        .boxed(".mortar.v1.Mknod.birth")
        .boxed(".mortar.v1.Mkdir.birth")
        .boxed(".mortar.v1.Symlink.birth")
        .boxed(".mortar.v1.Response.answer.rename")
        .boxed(".mortar.v1.DirEntry.found")
        .boxed(".mortar.v1.Grant.found")
        .boxed(".mortar.v1.Looked.found")
        .compile_fds(descriptors)?;
    Ok(())
}
