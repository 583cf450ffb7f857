"""Every private TensorFlow or Keras symbol, and every patch of a library."""
