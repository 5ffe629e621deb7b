// Activations as attributes of ops.

#ifndef TF_CONVPAR_CUSTOM_OPS_OPS_ACTIVATIONS_H_
#define TF_CONVPAR_CUSTOM_OPS_OPS_ACTIVATIONS_H_

// As an attribute of that name.
#define TF_CONVPAR_ACTIVATION(name) \
  name ": {'linear', 'relu', 'relu6', 'silu', 'gelu'} = 'linear'"

#endif  // TF_CONVPAR_CUSTOM_OPS_OPS_ACTIVATIONS_H_
