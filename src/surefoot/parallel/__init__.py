"""What every rank needs: seeds now; meshes and collectives with the cluster."""
