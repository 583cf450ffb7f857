"""Every private TensorFlow or Keras symbol and every patch; nowhere else."""
