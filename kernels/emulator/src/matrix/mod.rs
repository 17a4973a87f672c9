//! Matrix instructions: where each element sits (fragments, descriptors), and the products.
