//! Space: how much there is.

use mortar_tests::tree::Tree;
use mortar_xlators::fop::Statfs;

use super::stories;

stories![there_is_space_and_it_adds_up,];

async fn there_is_space_and_it_adds_up(tree: Tree) {
    let space = tree.send(Statfs).await.unwrap();
    assert!(space.block_bytes > 0 && space.blocks > 0);
    assert!(space.blocks_free <= space.blocks && space.blocks_available <= space.blocks_free);
    assert!(space.files_free <= space.files);
}
