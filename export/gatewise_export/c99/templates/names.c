/* ${mark} ${version}: names of the features and classes of ${title}, in UTF-8. */
#include "${p}.h"

const char *const ${p}_feature_names[${P}_FEATURES] = {
${feature_names}
};

const char *const ${p}_class_names[${P}_CLASSES] = {
${class_names}
};
